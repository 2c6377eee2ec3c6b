#include "product.h"

#include "../../core/error.h"
#include "scratch.h"
#include "vector_table.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <dnnl.hpp>
#include <omp.h>

namespace spillway::kernels {
namespace {

/// oneDNN chooses blocks, and with them the order of sums, by the thread's number of OpenMP threads. Restored,
/// because the thread may not be ours.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(saved_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int saved_;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type data_type(DType type) {
  return type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, DType type, Storage storage) {
  const dnnl::memory::dims strides =
      storage == Storage::rows ? dnnl::memory::dims{columns, 1} : dnnl::memory::dims{1, rows};
  return dnnl::memory::desc({rows, columns}, data_type(type), strides);
}

dnnl::matmul::primitive_desc describe(const ProductSpec& spec) {
  const auto a = matrix(spec.m, spec.k, spec.input, spec.a);
  const auto b = matrix(spec.k, spec.n, spec.input, spec.b);
  const auto c = matrix(spec.m, spec.n, spec.output, Storage::rows);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const OneOpenMpThread one;
  if (!spec.bias) return {dnnl::matmul::desc(a, b, c), attributes, cpu_engine()};
  return {dnnl::matmul::desc(a, b, matrix(1, spec.n, spec.input, Storage::rows), c), attributes, cpu_engine()};
}

[[noreturn]] void fail(const ProductSpec& spec, const dnnl::error& error) {
  throw Error(ErrorKind::resources, "oneDNN has no product for " + std::to_string(spec.m) + " x " +
                                        std::to_string(spec.n) + " x " + std::to_string(spec.k) + " " +
                                        std::string(name_of(spec.input)) + ": " + error.what());
}

/// oneDNN's blocked kernels take all their memory from the caller; the older gemm allocates inside.
bool takes_scratch(const dnnl::matmul::primitive_desc& description) {
  return std::string_view(description.impl_info_str()).starts_with("brg");
}

/// Nothing where the product has to go by panels.
std::optional<dnnl::matmul::primitive_desc> describe_whole(const ProductSpec& spec) {
  try {
    auto description = describe(spec);
    if (takes_scratch(description)) return description;
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) fail(spec, error);
  }
  return std::nullopt;
}

constexpr std::int64_t kPanelM = 128, kPanelN = 256, kPanelK = 512;

/// What oneDNN's gemm packs for one panel product: both panels, padded.
constexpr std::int64_t kLibraryBytes = 2 * (kPanelM + kPanelN) * kPanelK * 4;

ProductSpec panel_spec(const ProductSpec& spec, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k, .a = spec.a, .b = spec.b, .accumulate = true};
}

/// Calls for each size that panels of a dimension have.
template <class Function>
void for_sizes(std::int64_t size, std::int64_t panel, Function&& function) {
  if (size >= panel) function(panel);
  if (size % panel != 0) function(size % panel);
}

template <class Function>
void for_panels(const ProductSpec& spec, Function&& function) {
  for_sizes(spec.m, kPanelM, [&](std::int64_t m) {
    for_sizes(spec.n, kPanelN, [&](std::int64_t n) {
      for_sizes(spec.k, kPanelK, [&](std::int64_t k) { function(panel_spec(spec, m, n, k)); });
    });
  });
}

dnnl::matmul::primitive_desc describe_panel(const ProductSpec& spec) {
  try {
    return describe(spec);
  } catch (const dnnl::error& error) {
    fail(spec, error);
  }
}

std::int64_t scratchpad_bytes(const dnnl::matmul::primitive_desc& description) {
  return static_cast<std::int64_t>(description.scratchpad_desc().get_size());
}

/// One oneDNN primitive.
class Primitive {
 public:
  explicit Primitive(const dnnl::matmul::primitive_desc& description)
      : a_(description.src_desc()),
        b_(description.weights_desc()),
        c_(description.dst_desc()),
        bias_(description.query_md(dnnl::query::weights_md, 1)),
        scratchpad_(description.scratchpad_desc()) {
    const OneOpenMpThread one;
    matmul_ = dnnl::matmul(description);
  }

  void run(void* c, const void* a, const void* b, const void* bias, std::byte* scratch) const {
    const OneOpenMpThread one;
    // oneDNN takes inputs without const; it does not write them.
    const auto memory = [](const dnnl::memory::desc& description, const void* data) {
      return dnnl::memory(description, cpu_engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(a_, a)},
                                                    {DNNL_ARG_WEIGHTS, memory(b_, b)},
                                                    {DNNL_ARG_DST, memory(c_, c)},
                                                    {DNNL_ARG_SCRATCHPAD, memory(scratchpad_, scratch)}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(bias_, bias));
    thread_local const dnnl::stream stream(cpu_engine());
    matmul_.execute(stream, arguments);
  }

 private:
  dnnl::memory::desc a_, b_, c_, bias_, scratchpad_;
  dnnl::matmul matmul_;
};

/// The scratch of a product by panels.
struct PanelScratch {
  PanelScratch(const ProductSpec& spec, std::int64_t library, std::byte* base) : cursor(base) {
    const std::int64_t m = std::min(spec.m, kPanelM), n = std::min(spec.n, kPanelN),
                       k = std::min(spec.k, kPanelK);
    a = cursor.take<float>(m * k);
    b = cursor.take<float>(k * n);
    c = cursor.take<float>(m * n);
    bias = cursor.take<float>(n);
    scratchpad = cursor.take(library);
  }
  ScratchCursor cursor;
  float *a, *b, *c, *bias;
  std::byte* scratchpad;
};

}  // namespace

struct Product::Kernel {
  explicit Kernel(const ProductSpec& s)
      : spec(s), input(vector_table(s.input)), output(vector_table(s.output)) {
    try {
      if (const auto description = describe_whole(spec)) {
        whole.emplace(*description);
        return;
      }
      for_panels(spec, [&](const ProductSpec& panel) {
        const auto description = describe_panel(panel);
        library = std::max(library, scratchpad_bytes(description));
        panels.try_emplace(key(panel.m, panel.n, panel.k), description);
      });
    } catch (const dnnl::error& error) {
      fail(spec, error);
    }
  }

  static std::int64_t key(std::int64_t m, std::int64_t n, std::int64_t k) { return (m * 1024 + n) * 1024 + k; }

  /// Widens rows [r, r + rows) and columns [c, c + columns) of a matrix stored by `storage` into a dense one.
  void widen(float* to, const void* from, Storage storage, std::int64_t matrix_rows,
             std::int64_t matrix_columns, std::int64_t r, std::int64_t rows, std::int64_t c,
             std::int64_t columns) const {
    if (storage == Storage::columns) {
      std::swap(matrix_rows, matrix_columns);
      std::swap(r, c);
      std::swap(rows, columns);
    }
    const auto* source = static_cast<const std::byte*>(from);
    for (std::int64_t i = 0; i < rows; ++i) {
      input.widen(to + i * columns, source + ((r + i) * matrix_columns + c) * size_of(spec.input), columns);
    }
  }

  void run_panels(void* c, const void* a, const void* b, const void* bias, std::byte* scratch) const {
    const PanelScratch piece(spec, library, scratch);
    auto* const result = static_cast<std::byte*>(c);
    for (std::int64_t m0 = 0; m0 < spec.m; m0 += kPanelM) {
      const std::int64_t m = std::min(kPanelM, spec.m - m0);
      for (std::int64_t n0 = 0; n0 < spec.n; n0 += kPanelN) {
        const std::int64_t n = std::min(kPanelN, spec.n - n0);
        const auto at = [&](std::int64_t row) {
          return result + ((m0 + row) * spec.n + n0) * size_of(spec.output);
        };
        std::memset(piece.bias, 0, static_cast<std::size_t>(n) * sizeof(float));
        if (bias != nullptr) {
          input.widen(piece.bias, static_cast<const std::byte*>(bias) + n0 * size_of(spec.input), n);
        }
        for (std::int64_t row = 0; row < m; ++row) {
          const void* first = spec.accumulate ? static_cast<const void*>(at(row)) : piece.bias;
          std::memcpy(piece.c + row * n, first, static_cast<std::size_t>(n) * sizeof(float));
        }
        for (std::int64_t k0 = 0; k0 < spec.k; k0 += kPanelK) {
          const std::int64_t k = std::min(kPanelK, spec.k - k0);
          widen(piece.a, a, spec.a, spec.m, spec.k, m0, m, k0, k);
          widen(piece.b, b, spec.b, spec.k, spec.n, k0, k, n0, n);
          panels.at(key(m, n, k)).run(piece.c, piece.a, piece.b, nullptr, piece.scratchpad);
        }
        for (std::int64_t row = 0; row < m; ++row) output.narrow(at(row), piece.c + row * n, n, 1.0f);
      }
    }
  }

  ProductSpec spec;
  const VectorTable& input;
  const VectorTable& output;
  std::optional<Primitive> whole;
  std::unordered_map<std::int64_t, Primitive> panels;
  std::int64_t library = 0;
};

Product::Product(const ProductSpec& spec) : kernel_(std::make_unique<Kernel>(spec)) {}
Product::~Product() = default;
Product::Product(Product&&) noexcept = default;
Product& Product::operator=(Product&&) noexcept = default;

std::int64_t Product::scratch_bytes(const ProductSpec& spec) {
  if (const auto description = describe_whole(spec)) return scratchpad_bytes(*description);
  std::int64_t library = 0;
  for_panels(spec, [&](const ProductSpec& panel) {
    library = std::max(library, scratchpad_bytes(describe_panel(panel)));
  });
  return PanelScratch(spec, library, nullptr).cursor.used();
}

std::int64_t Product::library_bytes(const ProductSpec& spec) {
  if (describe_whole(spec)) return 0;
  std::int64_t bytes = 0;
  for_panels(spec, [&](const ProductSpec& panel) {
    if (!takes_scratch(describe_panel(panel))) bytes = kLibraryBytes;
  });
  return bytes;
}

void Product::run(void* c, const void* a, const void* b, const void* bias, std::byte* scratch) const {
  try {
    if (kernel_->whole) {
      kernel_->whole->run(c, a, b, bias, scratch);
    } else {
      kernel_->run_panels(c, a, b, bias, scratch);
    }
  } catch (const dnnl::error& error) {
    fail(kernel_->spec, error);
  }
}

}  // namespace spillway::kernels
