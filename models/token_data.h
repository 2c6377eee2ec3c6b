#pragma once
// Files of tokens, or of text whose bytes are the tokens, as one long row that is cut into sequences.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::models {

/// What a file holds. llm.c's token files say so in a header of 1,024 bytes: int32 magic 20240520 (uint16
/// tokens) or 20240801 (uint32), int32 version 1, int32 number of tokens; all little-endian.
enum class TokenFormat : std::uint8_t {
  automatic,  ///< by llm.c's header; without one, bytes (but not a .bin or .npy file)
  bytes,      ///< every byte is a token
  uint16,     ///< with llm.c's header or without one
  uint32,
};
/// "" (automatic), "bytes", "uint16", "uint32"; another word is std::logic_error.
TokenFormat token_format(std::string_view word);

/// The files that names and patterns (as of a shell) stand for: a name that exists, or holds no wildcard, is
/// itself, and a pattern's matches are sorted. Throws Error (io) for a pattern without a match.
std::vector<std::string> matching_files(const std::vector<std::string>& names);

/// Nothing of the files is kept in memory: sequences are read when they are asked for. Used by one thread.
class TokenData {
 public:
  struct Options {
    std::int64_t length = 1;      ///< tokens of a sequence
    std::int64_t vocabulary = 1;  ///< every token is below it; at least 256 for bytes
    TokenFormat format = TokenFormat::automatic;
    /// Called while the constructor checks the files, with the bytes done and those in all.
    std::function<void(std::int64_t, std::int64_t)> progress = {};
  };

  /// `names`: as of matching_files. Reads everything once and checks every token. Throws Error: io for what
  /// can't be read or matches nothing; configuration for a token outside the vocabulary (with file, index in
  /// it, and value), a header or size that does not fit, text beside tokens, and fewer than length + 1 tokens
  /// in all.
  TokenData(const std::vector<std::string>& names, Options options);
  std::vector<std::string> files() const;  ///< in the order in which they are read
  std::int64_t tokens() const { return tokens_; }
  bool is_text() const { return is_text_; }  ///< tokens are bytes
  /// Of an epoch: (tokens - 1) / length.
  std::int64_t sequences() const { return (tokens_ - 1) / options_.length; }
  /// Entropy of the distribution of single tokens, in nats: the loss of a model that knows frequencies only.
  double unigram_entropy() const { return unigram_entropy_; }

  /// Sequences number `first` ... of the endless training order, each with `length` tokens and their next
  /// tokens. Every epoch has each sequence once, in an order (and from a begin within what the cutting leaves
  /// over) that follows from (seed, epoch) alone; so the order can be continued anywhere. tokens and targets
  /// hold a whole number of sequences. Throws Error (io), also where a file has become shorter.
  void batch(std::uint64_t seed, std::int64_t first, std::span<std::int32_t> tokens,
             std::span<std::int32_t> targets) const;
  std::int64_t epoch_of(std::int64_t sequence) const { return sequence / sequences(); }

  /// Sequence number `index` below sequences(), in the order of the files.
  void sequence(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  /// An open file, closed with its owner.
  class Descriptor {
   public:
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(number_, other.number_);
      return *this;
    }
    ~Descriptor();
    int number() const { return number_; }

   private:
    int number_;
  };
  struct File {
    std::string path;
    Descriptor descriptor;
    int token_bytes = 1;
    std::int64_t offset = 0;  ///< bytes before the first token
    std::int64_t first = 0;   ///< tokens of the files before
    std::int64_t tokens = 0;
  };

  void open_file(const std::string& path);
  void check_tokens();
  /// length + 1 tokens from `at` on: all but the last, and all but the first.
  void read(std::int64_t at, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

  Options options_;
  std::vector<File> files_;
  std::int64_t tokens_ = 0;
  bool is_text_ = true;
  double unigram_entropy_ = 0;
  mutable std::vector<unsigned char> bytes_;  ///< of one sequence
};

/// The place of `index` in an order of [0, size) that follows from (seed, epoch): a permutation.
std::int64_t shuffled(std::int64_t index, std::int64_t size, std::uint64_t seed, std::uint32_t epoch);

}  // namespace spillway::models
