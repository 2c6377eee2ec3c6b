// Token files of any content. The input begins with six bytes of settings: the format (252 or more: with the
// largest vocabulary), sequence length - 1 (uint16), vocabulary - 1 (uint16), and where the rest is cut into
// two files (0: it is one).
#include "../../models/token_data.h"
#include "check.h"

#include <cmath>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace spillway;
using fuzz::check;

/// A file in memory, whose name has no ending.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> content)
      : descriptor_(memfd_create("tokens", MFD_CLOEXEC)) {
    check(descriptor_ >= 0, "a file in memory can be made");
    const ssize_t written = write(descriptor_, content.data(), content.size());
    check(written == static_cast<ssize_t>(content.size()), "a file in memory takes the input");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

void read_batches(const models::TokenData& data, std::int64_t length, std::int64_t vocabulary) {
  const std::int64_t sequences = data.sequences();
  check(sequences > 0, "data that is accepted has a sequence");
  check(data.unigram_entropy() > -1e-9 &&
            data.unigram_entropy() < std::log(static_cast<double>(vocabulary)) + 1e-9,
        "the entropy is that of a distribution over the vocabulary");
  const auto one = static_cast<std::size_t>(length);
  std::vector<std::int32_t> tokens(2 * one), targets(2 * one);
  const auto all_right = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      check(tokens[i] >= 0 && tokens[i] < vocabulary, "a token is inside the vocabulary");
      check(targets[i] >= 0 && targets[i] < vocabulary, "a target is inside the vocabulary");
      check((i + 1) % one == 0 || targets[i] == tokens[i + 1], "a target is the next token");
    }
  };
  for (const std::int64_t first :
       {std::int64_t{0}, sequences / 2, sequences - 1, 3 * sequences, std::int64_t{1} << 40}) {
    data.batch(1234, first, tokens, targets);
    all_right(tokens.size());
  }
  for (const std::int64_t index : {std::int64_t{0}, sequences - 1}) {
    data.sequence(index, std::span(tokens).first(one), std::span(targets).first(one));
    all_right(one);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  constexpr std::size_t kSettings = 6;
  if (size < kSettings) return -1;  // not worth a place in the corpus
  const auto number = [&](std::size_t at) { return std::int64_t{bytes[at] | bytes[at + 1] << 8} + 1; };
  const auto format = static_cast<models::TokenFormat>(bytes[0] % 4);
  const std::int64_t length = number(1);
  // Reading counts tokens in a table of the vocabulary, so a small one is faster; a model's has 31 bits.
  const std::int64_t vocabulary = bytes[0] >= 252 ? (std::int64_t{1} << 31) - 1 : number(3);
  const std::span content(bytes + kSettings, size - kSettings);
  const std::size_t cut = bytes[5] == 0 ? content.size() : content.size() * (bytes[5] - 1u) / 254;

  const MemoryFile head(content.first(cut)), tail(content.subspan(cut));
  std::vector<std::string> names{head.path()};
  if (bytes[5] != 0) names.push_back(tail.path());
  fuzz::only_errors_of_ours([&] {
    const models::TokenData data(names, {.length = length, .vocabulary = vocabulary, .format = format});
    read_batches(data, length, vocabulary);
  });
  return 0;
}
