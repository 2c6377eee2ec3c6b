#pragma once
// Text files read as bytes, each byte a token.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spillway::models {

class TextData {
 public:
  /// Concatenates the files. Throws Error (io) naming the file that can't be read, Error (configuration) where
  /// there are fewer than length + 1 bytes in all, with both numbers.
  TextData(const std::vector<std::string>& files, std::int64_t length);

  std::int64_t size() const;  ///< tokens
  int vocabulary() const { return 256; }

  /// Sequences number `first` ... of the endless training order: each is length tokens and their next tokens,
  /// from a place that follows from (seed, number) alone. tokens and targets hold a whole number of sequences.
  void batch(std::uint64_t seed, std::int64_t first, std::span<std::int32_t> tokens,
             std::span<std::int32_t> targets) const;

  /// Entropy of the distribution of single bytes, in nats: the loss of a model that knows frequencies only.
  double unigram_entropy() const;

 private:
  std::vector<unsigned char> bytes_;
  std::int64_t length_;
};

}  // namespace spillway::models
