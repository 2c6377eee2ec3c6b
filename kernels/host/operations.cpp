#include "operations.h"

#include "state.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::kernels {
namespace {

constexpr std::int64_t kTileElements = 16384;  // some microseconds of work, in a first-level cache

std::array<std::int64_t, 3> key(const LinearShape& s) {
  return {s.rows, s.in, s.out};
}
std::array<std::int64_t, 4> key(const AttentionShape& s) {
  return {s.batch, s.length, s.heads, s.head_width};
}

void check(DType type, const Shapes& shapes) {
  if (type != DType::bf16 && type != DType::fp32) throw std::logic_error("operations: bf16 or fp32");
  const auto positive = [](const auto& dimensions) {
    return std::all_of(dimensions.begin(), dimensions.end(), [](std::int64_t d) { return d >= 1; });
  };
  for (const auto& shape : shapes.linears) {
    if (!positive(key(shape))) throw std::logic_error("operations: a linear shape has a dimension below 1");
  }
  for (const auto& shape : shapes.attentions) {
    if (!positive(key(shape))) throw std::logic_error("operations: an attention shape has a dimension below 1");
  }
}

}  // namespace

ScratchSizes::ScratchSizes(DType type, const Shapes& shapes) {
  check(type, shapes);
  const auto count = [&](const auto& plan) {
    worker = std::max(worker, plan.scratch_bytes());
    plan.for_products(
        [&](const ProductSpec& spec) { onednn_own = std::max(onednn_own, Product::library_bytes(spec)); });
  };
  for (const auto& shape : shapes.linears) {
    count(LinearPlan(type, shape));
    zeros = std::max(zeros, aligned(shape.out * size_of(type)));
  }
  for (const auto& shape : shapes.attentions) count(AttentionPlan(type, shape));
}

HostOperations::State::State(HostDevice& on, DType its_type, const Shapes& shapes)
    : device(on),
      stream(on.stream(Lane::compute)),
      type(its_type),
      element(size_of(its_type)),
      vector(vector_table(its_type)),
      sizes(its_type, shapes),
      library(on.budget(), sizes.onednn_own * on.threads()),
      scratch(on.allocate("scratch", sizes.provided(on.threads()))) {
  const auto add = [&](const ProductSpec& spec) { products.add(spec); };
  for (const auto& shape : shapes.linears) {
    linears.try_emplace(key(shape), type, shape).first->second.for_products(add);
  }
  for (const auto& shape : shapes.attentions) {
    attentions.try_emplace(key(shape), type, shape).first->second.for_products(add);
  }
}

const LinearPlan& HostOperations::State::plan(const LinearShape& shape) const {
  const auto found = linears.find(key(shape));
  if (found == linears.end()) throw std::logic_error("operations: this linear shape was not named in Shapes");
  return found->second;
}

const AttentionPlan& HostOperations::State::plan(const AttentionShape& shape) const {
  const auto found = attentions.find(key(shape));
  if (found == attentions.end())
    throw std::logic_error("operations: this attention shape was not named in Shapes");
  return found->second;
}

void HostOperations::State::launch_rows(std::string_view name, std::int64_t rows, std::int64_t width,
                                        std::function<void(std::int64_t, std::int64_t)> body, int unit) {
  const std::int64_t block = std::max<std::int64_t>(1, kTileElements / std::max<std::int64_t>(1, width));
  launch(
      name, (rows + block - 1) / block,
      [=, body = std::move(body)](std::int64_t tile, int) {
        body(tile * block, std::min(block, rows - tile * block));
      },
      unit);
}

HostOperations::HostOperations(HostDevice& device, DType type, const Shapes& shapes)
    : state_(std::make_unique<State>(device, type, shapes)) {}

HostOperations::~HostOperations() {
  try {
    state_->stream.record().wait();  // the work uses the products and the scratch memory
  } catch (...) {                    // no memory for an event: the stream is as good as gone
  }
}

std::int64_t HostOperations::scratch_bytes(DType type, const Shapes& shapes, int threads) {
  return ScratchSizes(type, shapes).total(threads);
}

DType HostOperations::type() const {
  return state_->type;
}

}  // namespace spillway::kernels
