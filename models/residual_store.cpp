#include "residual_store.h"

#include "../offload/engine.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::models {

ResidualStore::ResidualStore(Engine& engine, Device& device, const ActivationChain& chain,
                             const ActivationChoice& choice, std::byte* memory)
    : engine_(engine),
      compute_(device.stream(Lane::compute)),
      up_(device.stream(Lane::copy_up)),
      chain_(chain),
      choice_(choice),
      buffers_(static_cast<std::size_t>(activation_buffers(chain, choice))),
      values_(static_cast<std::size_t>((chain.layers + 2) * chain.micro_batches)) {
  for (Buffer& buffer : buffers_) {
    buffer.data = memory;
    memory += chain.input_bytes;
  }
}

void ResidualStore::begin(bool for_backward) {
  for_backward_ = for_backward;
  for (Value& value : values_) {
    if (value.is_coming) compute_.wait(value.there);  // of a pass that was broken off
    value = {};
  }
  free_.clear();
  const Event now = compute_.record();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].used = now;
    free_.push_back(static_cast<int>(i));
  }
}

ResidualStore::Value& ResidualStore::value(std::int64_t place, int micro_batch) {
  return values_[static_cast<std::size_t>(place * chain_.micro_batches + micro_batch)];
}

/// Inputs first, then what passes between layers.
int ResidualStore::slot(std::int64_t place, int micro_batch) const {
  const std::int64_t row = place < chain_.layers ? place : choice_.moved + place - chain_.layers;
  return static_cast<int>(row * chain_.micro_batches) + micro_batch;
}

int ResidualStore::take() {
  if (free_.empty()) throw std::logic_error("ResidualStore: more is held than activation_buffers() says");
  const int buffer = free_.front();
  free_.pop_front();
  return buffer;
}

void ResidualStore::give(int buffer) {
  buffers_[static_cast<std::size_t>(buffer)].used = compute_.record();
  free_.push_back(buffer);
}

void* ResidualStore::write(std::int64_t place, int micro_batch) {
  Value& its = value(place, micro_batch);
  its.buffer = take();
  const Buffer& buffer = buffers_[static_cast<std::size_t>(its.buffer)];
  compute_.wait(buffer.moved);
  return buffer.data;
}

void ResidualStore::written(std::int64_t place, int micro_batch) {
  if (!moves(place)) return;
  Value& its = value(place, micro_batch);
  Buffer& buffer = buffers_[static_cast<std::size_t>(its.buffer)];
  buffer.moved = engine_.save_activation(slot(place, micro_batch), buffer.data);
  its.is_saved = true;
  if (choice_.moves_between) leave(place, micro_batch);
}

bool ResidualStore::bring(std::int64_t place, int micro_batch) {
  Value& its = value(place, micro_batch);
  if (its.buffer >= 0 || !its.is_saved || free_.empty()) return its.buffer >= 0;
  its.buffer = take();
  const Buffer& buffer = buffers_[static_cast<std::size_t>(its.buffer)];
  up_.wait(buffer.moved);
  its.there = engine_.load_activation(slot(place, micro_batch), buffer.data, buffer.used);
  its.is_coming = true;
  return true;
}

void* ResidualStore::read(std::int64_t place, int micro_batch) {
  if (!bring(place, micro_batch)) {
    throw std::logic_error("ResidualStore: nothing has been written there, or no buffer is left to bring it");
  }
  Value& its = value(place, micro_batch);
  if (its.is_coming) compute_.wait(its.there);
  its.is_coming = false;
  return buffers_[static_cast<std::size_t>(its.buffer)].data;
}

void ResidualStore::leave(std::int64_t place, int micro_batch) {
  if (for_backward_ && !moves(place)) return;
  Value& its = value(place, micro_batch);
  give(its.buffer);
  its.buffer = -1;
}

void ResidualStore::drop(std::int64_t place, int micro_batch) {
  Value& its = value(place, micro_batch);
  give(its.buffer);
  its = {};
}

void ResidualStore::announce(std::int64_t place, int micro_batch) {
  const Value& its = value(place, micro_batch);
  if (its.buffer < 0 && its.is_saved) engine_.prefetch_activation(slot(place, micro_batch));
}

void ResidualStore::fetch(std::int64_t place, int micro_batch) {
  bring(place, micro_batch);
}

void* ResidualStore::take_scratch() {
  const Buffer& buffer = buffers_[static_cast<std::size_t>(take())];
  compute_.wait(buffer.moved);
  return buffer.data;
}

void ResidualStore::drop_scratch(void* scratch) {
  const auto at = static_cast<std::byte*>(scratch) - buffers_.front().data;
  give(static_cast<int>(at / chain_.input_bytes));
}

}  // namespace spillway::models
