#include "token_data.h"

#include "../core/error.h"
#include "../core/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::models {
namespace {

constexpr std::int64_t kHeaderBytes = 1024;
constexpr std::uint32_t kMagic16 = 20240520, kMagic32 = 20240801;
constexpr std::int64_t kPiece = 1 << 20;  // bytes checked at once

Error cannot_read(const std::string& path, const char* operation, int error_number, std::string hint = {}) {
  return Error(ErrorKind::io, "a data file can't be read",
               {.operation = operation, .path = path, .error_number = error_number, .hint = std::move(hint)});
}

Error not_right(const std::string& path, const std::string& what, std::string hint = {}) {
  return Error(ErrorKind::configuration, fmt::format("{}: {}", path, what), {.hint = std::move(hint)});
}

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

/// Fills `bytes` from the place on; false where the file ends before.
bool read_at(int descriptor, const std::string& path, std::int64_t offset, std::span<unsigned char> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(descriptor, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset + static_cast<std::int64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw cannot_read(path, "read", errno);
    if (got == 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

std::uint32_t little_endian(const unsigned char* bytes, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  return value;
}

/// How often each token occurs. Few models have more than a million tokens, and a file may name any.
class Frequencies {
 public:
  explicit Frequencies(std::int64_t vocabulary)
      : common_(static_cast<std::size_t>(std::min<std::int64_t>(vocabulary, 1 << 20))) {}
  void count(std::uint32_t token) { ++(token < common_.size() ? common_[token] : rare_[token]); }
  double entropy(std::int64_t tokens) const {
    double sum = 0;
    const auto add = [&](std::int64_t count) {
      const double share = static_cast<double>(count) / static_cast<double>(tokens);
      if (count > 0) sum -= share * std::log(share);
    };
    for (const std::int64_t count : common_) add(count);
    for (const auto& [token, count] : rare_) add(count);
    return sum;
  }

 private:
  std::vector<std::int64_t> common_;
  std::unordered_map<std::uint32_t, std::int64_t> rare_;
};

}  // namespace

std::vector<std::string> matching_files(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (exists(name) || name.find_first_of("*?[") == std::string::npos) {
      files.push_back(name);
      continue;
    }
    glob_t found{};
    const int failure = glob(name.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    if (failure != 0 || paths.empty()) {
      throw Error(ErrorKind::io, fmt::format("no data file matches the pattern {}", name));
    }
    std::sort(paths.begin(), paths.end());
    files.insert(files.end(), paths.begin(), paths.end());
  }
  return files;
}

TokenFormat token_format(std::string_view word) {
  if (word.empty()) return TokenFormat::automatic;
  if (word == "bytes") return TokenFormat::bytes;
  if (word == "uint16") return TokenFormat::uint16;
  if (word == "uint32") return TokenFormat::uint32;
  throw std::logic_error("token_format: no such format");
}

TokenData::TokenData(const std::vector<std::string>& names, Options options) : options_(std::move(options)) {
  if (options_.length < 1 || options_.vocabulary < 1) {
    throw std::logic_error("TokenData: a sequence has at least one token, and so has a vocabulary");
  }
  for (const std::string& path : matching_files(names)) open_file(path);
  if (tokens_ <= options_.length) {
    const std::string one = files_.size() == 1 ? files_.front().path + ": " : "";
    throw Error(ErrorKind::configuration,
                fmt::format("{}the data has {} {}, but one sequence and its next token need {}", one, tokens_,
                            is_text_ ? "bytes" : "tokens", options_.length + 1),
                {.hint = "give more data or a shorter sequence_length"});
  }
  check_tokens();
  options_.progress = {};
  bytes_.resize(static_cast<std::size_t>(4 * (options_.length + 1)));
}

TokenData::Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

std::vector<std::string> TokenData::files() const {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

void TokenData::open_file(const std::string& path) {
  // A pipe without a writer would be waited for; a file on a drive never blocks.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw cannot_read(path, "open", errno,
                      errno == EMFILE ? "join files, or raise the limit on open files (ulimit -n)" : "");
  }
  files_.push_back({.path = path, .descriptor = Descriptor(descriptor), .first = tokens_});
  File& file = files_.back();
  struct stat status {};
  if (fstat(descriptor, &status) != 0) throw cannot_read(path, "stat", errno);
  if (S_ISDIR(status.st_mode)) throw cannot_read(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw cannot_read(path, "read", ESPIPE, "sequences are read in any order: save it to a file first");
  }
  const auto size = static_cast<std::int64_t>(status.st_size);

  std::array<unsigned char, 12> header{};
  const bool long_enough = size >= 4 && read_at(descriptor, path, 0, std::span(header).first(4));
  const std::uint32_t magic = long_enough ? little_endian(header.data(), 4) : 0;
  const TokenFormat of_header = magic == kMagic16   ? TokenFormat::uint16
                                : magic == kMagic32 ? TokenFormat::uint32
                                                    : TokenFormat::automatic;
  const bool has_header = of_header != TokenFormat::automatic && options_.format != TokenFormat::bytes;
  if (has_header) {
    const auto word = [](TokenFormat format) { return format == TokenFormat::uint16 ? "uint16" : "uint32"; };
    if (options_.format != TokenFormat::automatic && options_.format != of_header) {
      throw not_right(
          path, fmt::format("its header says {}, but {} is asked for", word(of_header), word(options_.format)),
          "leave --tokens away: the header is believed");
    }
    file.token_bytes = of_header == TokenFormat::uint16 ? 2 : 4;
    file.offset = kHeaderBytes;
    if (size < kHeaderBytes) {
      throw not_right(path, fmt::format("it has {} bytes, less than its header of {}", size, kHeaderBytes));
    }
    read_at(descriptor, path, 0, header);
    if (const std::uint32_t version = little_endian(header.data() + 4, 4); version != 1) {
      throw not_right(path, fmt::format("its header has version {}, and only version 1 is known", version));
    }
    file.tokens = little_endian(header.data() + 8, 4);
    if (const std::int64_t expected = kHeaderBytes + file.tokens * file.token_bytes; size != expected) {
      throw not_right(path,
                      fmt::format("its header says {} tokens, which are {} bytes, but it has {}", file.tokens,
                                  expected, size),
                      "the file may be cut off; write it again");
    }
  } else {
    const bool is_raw = options_.format == TokenFormat::uint16 || options_.format == TokenFormat::uint32;
    file.token_bytes = options_.format == TokenFormat::uint16   ? 2
                       : options_.format == TokenFormat::uint32 ? 4
                                                                : 1;
    if (is_raw && size % file.token_bytes != 0) {
      throw not_right(path, fmt::format("it has {} bytes, which is no whole number of tokens of {} bytes", size,
                                        file.token_bytes));
    }
    const bool looks_binary = path.ends_with(".bin") || path.ends_with(".npy");
    if (options_.format == TokenFormat::automatic && looks_binary) {
      throw not_right(path, "it has no header that tells what its tokens are",
                      "give --tokens uint16 or --tokens uint32; --tokens bytes reads it as text");
    }
    file.tokens = size / file.token_bytes;
  }
  const bool is_text = file.token_bytes == 1;
  if (files_.size() > 1 && is_text != is_text_) {
    throw not_right(path,
                    fmt::format("it holds {}, but {} holds {}", is_text ? "text" : "tokens",
                                files_.front().path, is_text_ ? "text" : "tokens"),
                    "train on one or the other");
  }
  is_text_ = is_text;
  if (constexpr std::int64_t kBytes = 256; is_text && options_.vocabulary < kBytes) {
    throw not_right(path,
                    fmt::format("text is read as bytes, and the model's vocabulary is {}, less than {}",
                                options_.vocabulary, kBytes),
                    "raise the model's vocab_size, or --vocab");
  }
  tokens_ += file.tokens;
}

void TokenData::check_tokens() {
  Frequencies frequencies(options_.vocabulary);
  std::vector<unsigned char> piece(kPiece);
  std::int64_t all = 0, done = 0;
  for (const File& file : files_) all += file.tokens * file.token_bytes;
  for (const File& file : files_) {
    for (std::int64_t at = 0; at < file.tokens;) {
      const std::int64_t count = std::min(kPiece / file.token_bytes, file.tokens - at);
      const auto bytes = std::span(piece).first(static_cast<std::size_t>(count * file.token_bytes));
      if (!read_at(file.descriptor.number(), file.path, file.offset + at * file.token_bytes, bytes)) {
        throw cannot_read(file.path, "read", 0, "the file has become shorter");
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t token = little_endian(bytes.data() + i * file.token_bytes, file.token_bytes);
        if (token >= static_cast<std::uint64_t>(options_.vocabulary)) {
          throw not_right(file.path,
                          fmt::format("token number {} is {}, outside the model's vocabulary of {}", at + i,
                                      token, options_.vocabulary),
                          "give the vocabulary of the tokens with --vocab, or check the type with --tokens");
        }
        frequencies.count(token);
      }
      at += count;
      done += count * file.token_bytes;
      if (options_.progress) options_.progress(done, all);
    }
  }
  unigram_entropy_ = frequencies.entropy(tokens_);
}

void TokenData::read(std::int64_t at, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const std::int64_t count = options_.length + 1;
  // The file that holds token `at`: the last that begins at or before it.
  auto file = std::upper_bound(files_.begin(), files_.end(), at,
                               [](std::int64_t place, const File& f) { return place < f.first; }) -
              1;
  for (std::int64_t i = 0; i < count; ++file) {
    const std::int64_t within = at + i - file->first, n = std::min(count - i, file->tokens - within);
    const auto bytes = std::span(bytes_).first(static_cast<std::size_t>(n * file->token_bytes));
    if (!read_at(file->descriptor.number(), file->path, file->offset + within * file->token_bytes, bytes)) {
      throw cannot_read(file->path, "read", 0, "the file has become shorter since the run began");
    }
    for (std::int64_t j = 0; j < n; ++j, ++i) {
      const auto token =
          static_cast<std::int32_t>(little_endian(bytes.data() + j * file->token_bytes, file->token_bytes));
      if (i < count - 1) tokens[static_cast<std::size_t>(i)] = token;
      if (i > 0) targets[static_cast<std::size_t>(i - 1)] = token;
    }
  }
}

void TokenData::batch(std::uint64_t seed, std::int64_t first, std::span<std::int32_t> tokens,
                      std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(options_.length);
  if (tokens.size() != targets.size() || tokens.size() % length != 0 || first < 0) {
    throw std::logic_error("TokenData::batch: tokens and targets must hold the same whole number of sequences");
  }
  const std::int64_t size = sequences();
  const auto left_over = static_cast<std::uint64_t>((tokens_ - 1) % options_.length);
  for (std::size_t i = 0; i < tokens.size() / length; ++i) {
    const std::int64_t number = first + static_cast<std::int64_t>(i);
    const auto epoch = static_cast<std::uint32_t>(epoch_of(number));
    const auto words =
        RandomStream{.seed = seed, .step = epoch, .stream = kDataOrderStream}.words(~std::uint64_t{0});
    const auto begin =
        static_cast<std::int64_t>(((std::uint64_t{words[1]} << 32) | words[0]) % (left_over + 1));
    const std::int64_t place = shuffled(number % size, size, seed, epoch);
    read(begin + place * options_.length, tokens.subspan(i * length, length),
         targets.subspan(i * length, length));
  }
}

void TokenData::sequence(std::int64_t index, std::span<std::int32_t> tokens,
                         std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(options_.length);
  if (index < 0 || index >= sequences() || tokens.size() != length || targets.size() != length) {
    throw std::logic_error("TokenData::sequence: there is no such sequence");
  }
  read(index * options_.length, tokens, targets);
}

std::int64_t shuffled(std::int64_t index, std::int64_t size, std::uint64_t seed, std::uint32_t epoch) {
  // A Feistel network of six rounds permutes the numbers of an even number of bits; where it leaves [0, size)
  // it is applied again, which ends, and permutes what is left (Black and Rogaway, "Ciphers with arbitrary
  // finite domains", 2002).
  const RandomStream random{.seed = seed, .step = epoch, .stream = kDataOrderStream};
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  const int half = std::max(1, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto place = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = place >> half, right = place & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ (random.words((round << 32) | right)[0] & mask);
      left = right;
      right = mixed;
    }
    place = (left << half) | right;
  } while (place >= static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(place);
}

}  // namespace spillway::models
