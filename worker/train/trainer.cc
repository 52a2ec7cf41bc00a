#include "worker/train/trainer.h"

#include <limits>

#include "worker/models/initialize.h"
#include "worker/optim/schedule.h"
#include "worker/precision/precision.h"
#include "worker/train/batches.h"
#include "worker/train/evaluate.h"

namespace muster::worker {
namespace {

sharding::PartitionOptions partition_options(const RunConfig& config, int world_size) {
  sharding::PartitionOptions options;
  options.bucket_bytes = static_cast<int64_t>(config.reduce_bucket_size_mb * (1 << 20));
  options.first_bucket_bytes = static_cast<int64_t>(config.first_bucket_size_mb * (1 << 20));
  if (config.zero_stage > 0) options.shards = world_size;
  return options;
}

LoaderOptions loader_options(const RunConfig& config, const comm::Place& place) {
  LoaderOptions options;
  options.order = {config.global_batch_size, config.micro_batch_size, place.world_size};
  options.rank = place.rank;
  options.seq_length = config.seq_length;
  options.seed = static_cast<uint64_t>(config.seed);
  options.timeout = milliseconds(static_cast<int64_t>(config.comm_timeout_s * 1000));
  return options;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& data, comm::Rendezvous& rendezvous, comm::Communicator& communicator, at::Device device)
    : config_(config),
      place_(rendezvous.place()),
      communicator_(communicator),
      device_(device),
      data_(data),
      loader_(data.train, loader_options(config, place_)),
      model_(make_model(config, data.vocab_size)),
      flat_(model_->parameters(), device, precision_of(config).parameters, precision_of(config).gradients, partition_options(config, place_.world_size)),
      reducer_(flat_, communicator, {config.overlap_grad_reduce, static_cast<int>(config.zero_stage)}),
      reported_at_(Clock::now()),
      best_val_loss_(std::numeric_limits<double>::infinity()) {
  sharding::check_same_parameters(flat_.parameters(), rendezvous, Deadline::after(milliseconds(static_cast<int64_t>(config.start_timeout_s * 1000))));
  initialize_parameters(flat_.parameters(), static_cast<uint64_t>(config.seed));
  reducer_.broadcast_parameters();
  optimizer_ = std::make_unique<AdamW>(flat_, reducer_, config);
  training_step_ = std::make_unique<TrainingStep>(config, *model_, flat_, reducer_, *optimizer_, communicator);
}

void Trainer::run(Observer* observer) {
  reported_at_ = Clock::now();
  for (int64_t step = 0; step < config_.train_iters; ++step) {
    train_step(step, observer);
    const int64_t done = step + 1;
    const bool last = done == config_.train_iters;
    if (last || (config_.eval_interval > 0 && done % config_.eval_interval == 0)) evaluate(done, observer);
  }
}

void Trainer::train_step(int64_t step, Observer* observer) {
  std::vector<Batch> micro_batches;
  for (int64_t m = 0; m < gradient_accumulation_steps(config_, place_.world_size); ++m) {
    micro_batches.push_back(make_batch(loader_.next(), config_.seq_length, device_));
  }
  const StepOutcome outcome = training_step_->run(micro_batches, step);
  const int64_t done = step + 1;
  if (observer && (done == 1 || done % config_.log_interval == 0 || done == config_.train_iters)) report(done, outcome, *observer);
}

void Trainer::report(int64_t done, const StepOutcome& outcome, Observer& observer) {
  const at::Tensor totals = outcome.totals.to(at::kCPU);  // waits for the device
  const double* values = totals.const_data_ptr<double>();
  StepReport report;
  report.step = done;
  report.loss = values[0] / values[1];
  report.grad_norm = outcome.grad_norm.item<double>();
  report.lr = learning_rate(config_, done - 1);
  const double seconds = seconds_since(reported_at_) / static_cast<double>(done - reported_steps_);
  report.step_ms = seconds * 1e3;
  report.tokens_per_second = values[1] / seconds;
  observer.on_step(report);
  reported_steps_ = done;
  reported_at_ = Clock::now();
}

void Trainer::evaluate(int64_t done, Observer* observer) {
  const auto started = Clock::now();
  const double loss = worker::evaluate(config_, *data_.val, *model_, communicator_, device_);
  best_val_loss_ = std::min(best_val_loss_, loss);
  if (observer) observer->on_evaluation({done, loss, best_val_loss_});
  reported_at_ += Clock::now() - started;  // step times are of training alone
}

}  // namespace muster::worker
