// muster-worker: one rank's training. Started by its agent, or by hand as a job of one rank:
//
//   muster-worker [CONFIG.yaml] [--key value ...]

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/control/agent_link.h"
#include "worker/config/layout.h"
#include "worker/config/run_config.h"
#include "worker/data/dataset.h"
#include "worker/metrics/console.h"
#include "worker/models/attention.h"
#include "worker/precision/precision.h"
#include "worker/train/device.h"
#include "worker/train/generate.h"
#include "worker/train/trainer.h"

namespace muster::worker {
namespace {

RunConfig read_config(const std::vector<std::string>& arguments, int world_size) {
  const bool has_file = !arguments.empty() && !arguments[0].starts_with("--");
  const std::vector<std::string> rest(arguments.begin() + (has_file ? 1 : 0), arguments.end());
  RunConfig config = load_config(has_file ? arguments[0] : "", parse_overrides(rest));
  finalize_config(config, world_size);
  return config;
}

void log_start(const RunConfig& config, const comm::Place& place, const Dataset& data, at::Device device, Trainer& trainer) {
  int64_t parameters = 0;
  for (const auto* p : trainer.flat().parameters()) parameters += p->numel();
  log_info("{} ranks on {} ({}); {} parameters in {} buckets, {}, attention {}; {} training and {} validation tokens, vocabulary {}",
           place.world_size, device.str(), place.source, parameters, trainer.flat().partition().buckets().size(), config.precision,
           ops::attention_kernel(device, precision_of(config).parameters, config.attention_dropout), data.train->size(),
           data.val->size(), data.vocab_size);
}

// What stays from step to step, beside the plan's figure.
void log_memory(const RunConfig& config, int world_size, const Dataset& data, at::Device device, const Trainer& trainer) {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const auto plan = sharding::plan_memory(memory_input(config, world_size, data.vocab_size));
  const int64_t held = trainer.flat().param_bytes() + trainer.flat().grad_bytes() + trainer.optimizer().state_bytes();
  log_info("memory of rank 0: parameters, gradients and optimizer {:.1f} MiB (planned {:.1f}); at peak {:.1f} MiB {}", mib(held), mib(plan.persistent()),
           mib(memory_use(device).peak), device.is_cpu() ? "of the process" : "of the allocator");
}

std::vector<int64_t> draw_sample(const RunConfig& config, const Dataset& data, at::Device device, Trainer& trainer) {
  std::vector<int64_t> prompt(1);
  data.train->read(0, 1, prompt.data());
  const auto next_logits = [&](const at::Tensor& tokens) {
    trainer.parallel().begin_forward();
    return trainer.model().next_token_logits(tokens);
  };
  const auto tokens = generate(next_logits, prompt, config.sample_tokens, config.seq_length, device, static_cast<uint64_t>(config.seed));
  trainer.parallel().end_forward();
  return tokens;
}

void print_sample(const Dataset& data, const std::vector<int64_t>& tokens) {
  std::string text;
  if (data.characters) {
    text = data.characters->decode(tokens);
  } else {
    for (const int64_t t : tokens) text += std::to_string(t) + " ";
  }
  std::printf("--- sample ---\n%s\n--------------\n", text.c_str());
  std::fflush(stdout);
}

void train(const RunConfig& config, comm::Rendezvous& rendezvous) {
  const Dataset data = open_dataset(config);
  const at::Device device = open_device(config, rendezvous.place());
  const auto communicator = open_communicator(config, device, rendezvous);
  const bool first = rendezvous.place().rank == 0;
  Trainer trainer(config, data, rendezvous, *communicator, device);
  if (first) log_start(config, rendezvous.place(), data, device, trainer);
  std::optional<Console> console;
  if (first) console.emplace(config);
  trainer.run(first ? &*console : nullptr);
  if (first) log_memory(config, rendezvous.place().world_size, data, device, trainer);
  // Where parameters are sharded, all ranks are needed for a sample.
  if (config.sample_tokens > 0 && (first || trainer.flat().shards_parameters())) {
    const auto tokens = draw_sample(config, data, device, trainer);
    if (first) print_sample(data, tokens);
  }
  synchronize(device);
  communicator->barrier()->synchronize(Deadline::after(milliseconds(static_cast<int64_t>(config.comm_timeout_s * 1000))));
}

int run(const std::vector<std::string>& arguments) {
  const auto rendezvous = comm::has_agent() ? comm::make_agent_rendezvous() : comm::make_single_rendezvous();
  log_init(fmt::format("rank {}", rendezvous->place().rank));
  train(read_config(arguments, rendezvous->place().world_size), *rendezvous);
  return kExitOk;
}

int fail(const std::string& what, int exit_code) {
  log_error("{}", what);
  comm::report_failure(what, exit_code);
  return exit_code;
}

// One line: LibTorch's messages carry a stack.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace
}  // namespace muster::worker

int main(int argc, char** argv) {
  using namespace muster;
  try {
    return worker::run({argv + 1, argv + argc});
  } catch (const InputError& e) {
    return worker::fail(e.what(), kExitInput);
  } catch (const PeerError& e) {
    return worker::fail(e.what(), kExitPeer);
  } catch (const DivergedError& e) {
    return worker::fail(e.what(), kExitDiverged);
  } catch (const std::exception& e) {
    return worker::fail(worker::first_line(e.what()), kExitInternal);
  }
}
