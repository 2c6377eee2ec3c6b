// From a configuration to what a decoder needs of it: what is kept for the backward pass follows from what the
// rest of the plan leaves.
#include "../offload/plan.h"
#include "decoder_memory.h"

#include <algorithm>
#include <stdexcept>

namespace spillway::models {
namespace {

/// What is left where the rest of the run takes what it must; and, with `ahead`, a place on the device for the
/// unit that comes next besides.
ActivationRoom room(const DecoderConfig& decoder, const DecoderRun& run, const Config& config,
                    std::int64_t memory, bool ahead) {
  Config least = config;
  least.host_memory = 0;
  least.device_memory = ahead ? -1 : 0;
  const Layout layout = decoder_layout(decoder, run);
  const Plan plan = make_plan(layout, least);
  const ActivationChain chain = decoder_chain(decoder, run);
  const std::int64_t device = plan.device.total() - device_bytes(chain, run.activations);
  const std::int64_t host = plan.host.total();
  const auto left = [](std::int64_t limit, std::int64_t taken) {
    return limit < 0 ? limit : std::max<std::int64_t>(limit - taken, 0);
  };
  return {.device = left(config.device_memory, device),
          .host = left(config.host_memory, host),
          .together = left(memory, device + host),
          .nvme_staging = round_up(chain.input_bytes, kBlockBytes),
          .has_nvme = !activation_directories(config).empty()};
}

}  // namespace

DecoderRun decoder_run(const DecoderConfig& decoder, const Batch& batch, const Config& config,
                       std::int64_t memory) {
  DecoderRun run{.batch = batch,
                 .precision = config.precision,
                 .device_threads = config.device_threads,
                 .no_decay = config.no_decay,
                 .at_once = config.accumulation_order == AccumulationOrder::layer ? config.accumulation : 1};
  if (config.device_threads < 1) throw std::logic_error("decoder_run: Config::device_threads is not settled");
  check_batch(decoder, batch);
  const ActivationChain chain = decoder_chain(decoder, run);
  // Computing again costs less than standing still for parameters.
  for (const bool ahead : {true, false}) {
    run.activations = {};
    const ActivationRoom left = room(decoder, run, config, memory, ahead);
    run.activations = choose_activations(config.activations, chain, left);
    if (left.device < 0 || device_bytes(chain, run.activations) <= left.device) break;
  }
  return run;
}

}  // namespace spillway::models
