#include "text_data.h"

#include "../core/error.h"
#include "../core/random.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>

namespace spillway::models {
namespace {

void append_file(std::vector<unsigned char>& bytes, const std::string& path) {
  const auto fail = [&](const char* operation, int error_number) {
    throw Error(ErrorKind::io, "a data file can't be read",
                {.operation = operation, .path = path, .error_number = error_number});
  };
  const auto close = [](std::FILE* file) { std::fclose(file); };
  errno = 0;
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) fail("open", errno);
  constexpr std::size_t kPiece = 1 << 20;
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kPiece);
    errno = 0;
    const std::size_t got = std::fread(bytes.data() + before, 1, kPiece, file.get());
    const int error_number = errno;
    bytes.resize(before + got);
    if (got == kPiece) continue;
    if (std::ferror(file.get()) != 0) fail("read", error_number);  // a directory opens, and fails here
    return;
  }
}

}  // namespace

TextData::TextData(const std::vector<std::string>& files, std::int64_t length) : length_(length) {
  if (length < 1) throw std::logic_error("TextData: a sequence has at least one token");
  for (const std::string& path : files) append_file(bytes_, path);
  if (size() < length + 1) {
    throw Error(ErrorKind::configuration,
                "the data has " + std::to_string(size()) + " bytes, but one sequence and its next token need " +
                    std::to_string(length + 1),
                {.path = files.size() == 1 ? files.front() : "",
                 .hint = "give more text or a shorter sequence_length"});
  }
  bytes_.shrink_to_fit();
}

std::int64_t TextData::size() const {
  return static_cast<std::int64_t>(bytes_.size());
}

void TextData::batch(std::uint64_t seed, std::int64_t first, std::span<std::int32_t> tokens,
                     std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(length_);
  if (tokens.size() != targets.size() || tokens.size() % length != 0 || first < 0) {
    throw std::logic_error("TextData::batch: tokens and targets must hold the same whole number of sequences");
  }
  const RandomStream random{.seed = seed, .stream = kDataOrderStream};
  const std::size_t places = bytes_.size() - length;  // at least 1
  for (std::size_t sequence = 0; sequence < tokens.size() / length; ++sequence) {
    const double u = random.uniform(static_cast<std::uint64_t>(first) + sequence);
    const std::size_t place = std::min(static_cast<std::size_t>(u * static_cast<double>(places)), places - 1);
    for (std::size_t i = 0; i < length; ++i) {
      tokens[sequence * length + i] = bytes_[place + i];
      targets[sequence * length + i] = bytes_[place + i + 1];
    }
  }
}

double TextData::unigram_entropy() const {
  std::array<std::int64_t, 256> counts{};
  for (const unsigned char byte : bytes_) ++counts[byte];
  double entropy = 0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(size());
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace spillway::models
