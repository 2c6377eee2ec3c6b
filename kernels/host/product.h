#pragma once
// Products of small dense matrices through oneDNN, each on one thread with its scratch memory counted.
#include "../../core/dtype.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace spillway::kernels {

/// How a dense matrix lies in memory: row after row, or column after column (its transpose row after row).
enum class Storage : std::uint8_t { rows, columns };

/// c[m, n] = a[m, k] b[k, n]. Sums are taken in fp32; c is stored by rows.
struct ProductSpec {
  std::int64_t m = 0, n = 0, k = 0;
  Storage a = Storage::rows, b = Storage::rows;
  DType input = DType::fp32;   ///< of a and b
  DType output = DType::fp32;  ///< of c: fp32, or the input's
  bool bias = false;           ///< bias[n] in the input's type is added to each row; not with accumulate
  bool accumulate = false;     ///< c += a b; the output is fp32
  friend auto operator<=>(const ProductSpec&, const ProductSpec&) = default;
};

/// A product of one shape, made once and run often. oneDNN's own kernel where it has one whose scratch memory
/// the caller can provide (AVX-512); else panels of bounded size are widened to fp32 and multiplied in fp32.
/// oneDNN's rounding to bf16 may flush subnormals; the panels' does not. The bits of c follow from the shape
/// and the ISA.
class Product {
 public:
  /// Throws Error (resources) where oneDNN has no kernel at all or no memory.
  explicit Product(const ProductSpec& spec);
  ~Product();
  Product(Product&&) noexcept;
  Product& operator=(Product&&) noexcept;

  /// Bytes that run() needs, without making the product.
  static std::int64_t scratch_bytes(const ProductSpec& spec);
  /// A bound of what oneDNN allocates itself while it runs: its older kernels do, and the caller cannot provide
  /// it.
  static std::int64_t library_bytes(const ProductSpec& spec);

  /// scratch: scratch_bytes(), aligned to 64. Any number of threads may run one product, each with its own
  /// scratch.
  void run(void* c, const void* a, const void* b, const void* bias, std::byte* scratch) const;

 private:
  struct Kernel;
  std::unique_ptr<const Kernel> kernel_;
};

}  // namespace spillway::kernels
