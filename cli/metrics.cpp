#include "metrics.h"

#include "../core/error.h"

#include <algorithm>
#include <cerrno>
#include <cmath>

#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

/// JSON has no word for what is not finite.
json number(double value) {
  return std::isfinite(value) ? json(value) : json();
}

}  // namespace

Metrics::Metrics(const std::string& path) : path_(path), file_(nullptr, &std::fclose) {
  if (path_.empty()) return;
  file_.reset(std::fopen(path_.c_str(), "wbe"));
  if (file_ == nullptr) {
    throw Error(ErrorKind::io, "--metrics: cannot write this file",
                {.operation = "open", .path = path_, .error_number = errno});
  }
}

void Metrics::add(const StepMetrics& m) {
  if (!wanted()) return;
  nlohmann::ordered_json line = {{"step", m.step},
                                 {"loss", number(m.loss)},
                                 {"grad_norm", number(m.gradient_norm)},
                                 {"learning_rate", m.learning_rate},
                                 {"tokens_per_s", static_cast<double>(m.tokens) / std::max(m.seconds, 1e-9)},
                                 {"step_s", m.seconds}};
  auto& busy = line["lane_s"];
  auto& exposed = line["exposed_s"];
  for (std::size_t lane = 0; lane < m.lanes.busy.size(); ++lane) {
    const std::string name(name_of(static_cast<Lane>(lane)));
    busy[name] = m.lanes.busy[lane];
    exposed[name] = m.lanes.exposed[lane];
  }
  exposed["other"] = m.lanes.other;
  line["floor_s"] = m.floor.seconds;
  line["bound"] = m.floor.bound;
  line["epoch"] = m.epoch;
  line["skipped"] = m.skipped;
  if (m.eval_loss) line["eval_loss"] = number(*m.eval_loss);
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
    throw Error(ErrorKind::io, "--metrics: cannot write this file",
                {.operation = "write", .path = path_, .error_number = errno});
  }
}

}  // namespace spillway::cli
