#include "tune_picture.h"

#include "../core/size.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

namespace spillway::cli {
namespace {

using aio::TuneEstimate;
using aio::TuneSetting;

constexpr double kGB = 1e9;
constexpr int kCellWidth = 84, kCellHeight = 46, kLeft = 74, kTop = 96, kRight = 24, kBottom = 74;

// Plain classes and no variables: not every viewer of pictures knows those.
constexpr const char* kStyle =
    "<style>\n"
    "text { font: 14px system-ui, sans-serif; fill: #1b1f24; }\n"
    ".small { font-size: 12px; } .title { font-size: 17px; font-weight: 600; }\n"
    ".paper { fill: #ffffff; } .cell { fill: #2f6fb5; } .mark { fill: #1b1f24; }\n"
    ".bar { stroke: #1b1f24; stroke-width: 2; } .chosen { fill: none; stroke: #1b1f24; stroke-width: 3; }\n"
    ".axis { stroke: #8a929b; } .none { fill: none; stroke: #8a929b; stroke-dasharray: 2 4; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  text, .mark { fill: #e8ebef; } .bar, .chosen { stroke: #e8ebef; }\n"
    "  .paper { fill: #14181d; } .cell { fill: #5b9bd9; } .axis, .none { stroke: #7d868f; }\n"
    "}\n"
    "</style>\n";

/// Text as XML may hold it; what is not printable ASCII (names of drives) becomes a question mark.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }
  return result;
}

std::string label(int x, int y, std::string_view anchor, std::string_view css, std::string_view text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, css,
                     escaped(text));
}

std::string empty_cell(int x, int y) {
  return fmt::format("<rect class=\"none\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", x + 2, y + 2,
                     kCellWidth - 4, kCellHeight - 4);
}

/// `most`: the bandwidth that the right edge of the interval's scale stands for.
std::string cell(int x, int y, const TuneEstimate& one, double most, bool chosen) {
  const double share = std::clamp(one.bytes_per_s / most, 0.0, 1.0);
  const int scale_left = x + 10, scale_right = x + kCellWidth - 10, bar = y + kCellHeight - 10;
  const auto place = [&](double value) {
    return scale_left + (scale_right - scale_left) * std::clamp(value / most, 0.0, 1.0);
  };
  std::string text = "<g>\n";
  text += fmt::format(
      "<title>{}</title>\n",
      escaped(fmt::format("{}: {:.2f} GB/s, 95% interval {:.2f} to {:.2f}, {:.0f}% of the best, {:.2f} "
                          "CPU s/GB, {} trials",
                          setting_text(one.setting), one.bytes_per_s / kGB, one.low / kGB, one.high / kGB,
                          100 * one.of_best, one.cpu_s_per_gb, one.trials)));
  text += fmt::format(
      "<rect class=\"cell\" fill-opacity=\"{:.3f}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
      0.05 + 0.5 * share * share, x + 1, y + 1, kCellWidth - 2, kCellHeight - 2);
  text += label(x + kCellWidth / 2, y + 24, "middle", chosen ? "title" : "",
                fmt::format("{:.2f}{}", one.bytes_per_s / kGB, chosen ? " *" : ""));
  text += fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{2}\" x2=\"{1}\" y2=\"{2}\"/>\n", scale_left,
                      scale_right, bar);
  text += fmt::format("<line class=\"bar\" x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\"/>\n", place(one.low),
                      bar, std::max(place(one.high), place(one.low) + 1), bar);
  text +=
      fmt::format("<circle class=\"mark\" cx=\"{:.1f}\" cy=\"{}\" r=\"3\"/>\n", place(one.bytes_per_s), bar);
  if (chosen) {
    text += fmt::format("<rect class=\"chosen\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", x + 1, y + 1,
                        kCellWidth - 2, kCellHeight - 2);
  }
  return text + "</g>\n";
}

}  // namespace

std::string tune_picture(const TuneRun& run) {
  const auto& blocks = run.options.block_sizes;
  const auto& depths = run.options.depths;
  const aio::TuneResult& r = run.result;
  const int columns = static_cast<int>(blocks.size()), rows = static_cast<int>(depths.size());
  const int width = std::max(kLeft + columns * kCellWidth + kRight, 560);
  const int height = kTop + rows * kCellHeight + kBottom;
  double most = 1;
  const auto find = [&](int row, int column) {
    TuneSetting setting = r.chosen;
    setting.block_bytes = blocks[static_cast<std::size_t>(column)];
    setting.depth = depths[static_cast<std::size_t>(row)];
    return r.find(setting);
  };
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      if (const auto* one = find(row, column)) most = std::max(most, one->bytes_per_s);
    }
  }
  most *= 1.15;  // room for intervals

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" "
      "aria-labelledby=\"what\">\n<title id=\"what\">Bandwidth by queue depth and block size</title>\n",
      width, height);
  svg += kStyle;
  svg += fmt::format("<rect class=\"paper\" width=\"{}\" height=\"{}\"/>\n", width, height);
  svg += label(16, 28, "start", "title", "GB/s by queue depth and block size");
  svg +=
      label(16, 48, "start", "small",
            fmt::format("{}; {}, {}", run.drive, name_of(r.chosen.engine),
                        r.chosen.overlap ? "reads and writes at the same time" : "reads and writes by turns"));
  svg += label(kLeft - 12, kTop - 10, "end", "small", "depth");
  for (int column = 0; column < columns; ++column) {
    svg += label(kLeft + column * kCellWidth + kCellWidth / 2, kTop - 10, "middle", "small",
                 format_size(blocks[static_cast<std::size_t>(column)]));
  }
  for (int row = 0; row < rows; ++row) {
    const int y = kTop + row * kCellHeight;
    svg += label(kLeft - 12, y + kCellHeight / 2 + 5, "end", "small",
                 std::to_string(depths[static_cast<std::size_t>(row)]));
    for (int column = 0; column < columns; ++column) {
      const int x = kLeft + column * kCellWidth;
      const TuneEstimate* const one = find(row, column);
      svg += one == nullptr ? empty_cell(x, y) : cell(x, y, *one, most, one->setting == r.chosen);
    }
  }
  const int below = kTop + rows * kCellHeight + 24;
  svg += label(16, below, "start", "small",
               fmt::format("* in a frame: the cheapest setting within {:.0f}% of the best",
                           100 * run.options.tolerance));
  svg +=
      label(16, below + 18, "start", "small",
            fmt::format("bar: 95% interval on a scale from 0 to {:.1f} GB/s; dashed: not tried", most / kGB));
  return svg + "</svg>\n";
}

}  // namespace spillway::cli
