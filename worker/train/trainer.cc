#include "worker/train/trainer.h"

#include <limits>

#include "worker/config/layout.h"
#include "worker/models/initialize.h"
#include "worker/optim/schedule.h"
#include "worker/precision/precision.h"
#include "worker/train/batches.h"
#include "worker/train/device.h"
#include "worker/train/evaluate.h"

namespace muster::worker {
namespace {

milliseconds seconds(double s) { return milliseconds(static_cast<int64_t>(s * 1000)); }

sharding::FlatOptions flat_options(const RunConfig& config, at::Device device) {
  sharding::FlatOptions options;
  options.device = device;
  options.param_dtype = precision_of(config).parameters;
  options.grad_dtype = precision_of(config).gradients;
  options.zero_stage = static_cast<int>(config.zero_stage);
  options.partition.bucket_bytes = static_cast<int64_t>(config.reduce_bucket_size_mb * (1 << 20));
  options.partition.first_bucket_bytes = static_cast<int64_t>(config.first_bucket_size_mb * (1 << 20));
  return options;
}

sharding::Reducer::Options reduction_options(const RunConfig& config) {
  sharding::Reducer::Options options;
  options.overlap = config.overlap_grad_reduce;
  options.wire_dtype = wire_dtype_of(config);
  if (config.gradient_compression == "int8") options.compression = sharding::make_int8_sum;
  if (config.gradient_compression == "powersgd") {
    options.compression = [&config](sharding::FlatModel& model, comm::Communicator& communicator) {
      return sharding::make_power_sgd(model, communicator, static_cast<int>(config.powersgd_rank), static_cast<uint64_t>(config.seed));
    };
  }
  return options;
}

std::unique_ptr<sharding::Groups> open_groups(const RunConfig& config, at::Device device, comm::Rendezvous& rendezvous, comm::Communicator& world) {
  const auto factory = [&config, device](comm::Rendezvous& group, const std::string& name) { return open_communicator(config, device, group, name); };
  const sharding::Mesh mesh(mesh_sizes(config, world.size()), world.rank());
  return std::make_unique<sharding::Groups>(mesh, rendezvous, world, factory, config.zero_stage > 2, Deadline::after(seconds(config.start_timeout_s)));
}

LoaderOptions loader_options(const RunConfig& config, const comm::Place& place) {
  LoaderOptions options;
  options.order = {config.global_batch_size, config.micro_batch_size, place.world_size};
  options.rank = place.rank;
  options.seq_length = config.seq_length;
  options.seed = static_cast<uint64_t>(config.seed);
  options.timeout = seconds(config.comm_timeout_s);
  return options;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& data, comm::Rendezvous& rendezvous, comm::Communicator& communicator, at::Device device)
    : config_(config),
      place_(rendezvous.place()),
      device_(device),
      data_(data),
      loader_(data.train, loader_options(config, place_)),
      model_(make_model(config, data.vocab_size)),
      groups_(open_groups(config, device, rendezvous, communicator)),
      parallel_(std::make_unique<sharding::DataParallel>(model_->parameters(), model_->units(), flat_options(config, device), *groups_,
                                                         reduction_options(config))),
      reported_at_(Clock::now()),
      best_val_loss_(std::numeric_limits<double>::infinity()) {
  sharding::check_same_parameters(flat().parameters(), rendezvous, Deadline::after(seconds(config.start_timeout_s)));
  parallel_->initialize([&](sharding::Parameter& p) { initialize_parameter(p, static_cast<uint64_t>(config.seed)); });
  optimizer_ = make_optimizer(*parallel_, config);
  training_step_ = std::make_unique<TrainingStep>(config, *model_, *parallel_, *optimizer_);
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
  report.loss_scale = training_step_->loss_scale();
  report.peak_memory_bytes = memory_use(device_).peak;
  if (!training_step_->decides_on_host()) training_step_->check(outcome, done - 1);
  const double seconds = seconds_since(reported_at_) / static_cast<double>(done - reported_steps_);
  report.step_ms = seconds * 1e3;
  report.tokens_per_second = values[1] / seconds;
  observer.on_step(report);
  reported_steps_ = done;
  reported_at_ = Clock::now();
}

void Trainer::evaluate(int64_t done, Observer* observer) {
  const auto started = Clock::now();
  const double loss = worker::evaluate(config_, *data_.val, *model_, *parallel_, device_);
  best_val_loss_ = std::min(best_val_loss_, loss);
  if (observer) observer->on_evaluation({done, loss, best_val_loss_});
  reported_at_ += Clock::now() - started;  // step times are of training alone
}

}  // namespace muster::worker
