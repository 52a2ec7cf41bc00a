#include "sharding/pipeline/executor.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/base/error.h"

namespace muster::sharding::pipeline {

Executor::Executor(const Schedule& schedule, int rank, std::map<Channel, Link> links, Stages& stages, ExecutorOptions options)
    : schedule_(schedule), rank_(rank), links_(std::move(links)), stages_(stages), options_(std::move(options)) {}

std::vector<at::Tensor> Executor::run() {
  losses_.assign(here(schedule_.stages() - 1) ? schedule_.micro_batches : 0, at::Tensor());
  peak_live_ = 0;
  for (const Action& action : schedule_.actions[rank_]) {
    if (is_receive(action.kind)) to_receive_[channel_of(schedule_, action)].push_back(action);
  }
  for (const auto& [channel, actions] : to_receive_) post_receives(channel);
  for (const Action& action : schedule_.actions[rank_]) {
    const Key key{action.stage, action.micro_batch};
    switch (action.kind) {
      case Kind::kForward: forward(action); break;
      case Kind::kBackward:
      case Kind::kBackwardInput: backward(action); break;
      case Kind::kBackwardWeight: backward_weight(action); break;
      case Kind::kSendActivation: send(action, std::exchange(passes_.at(key).output, at::Tensor())); break;
      case Kind::kSendGradient: send(action, std::exchange(gradients_.at({action.stage - 1, action.micro_batch}), at::Tensor())); break;
      case Kind::kRecvActivation: inputs_[key] = receive(action); break;
      case Kind::kRecvGradient: gradients_[key] = receive(action); break;
      case Kind::kReduce:    // the reducer starts by itself with the last report
      case Kind::kUnshard: break;
    }
  }
  for (const auto& work : sends_) work->wait();
  sends_.clear();
  gradients_.clear();
  MUSTER_CHECK(passes_.empty());
  return std::move(losses_);
}

void Executor::post_receives(const Channel& channel) {
  auto& waiting = to_receive_[channel];
  auto& posted = posted_[channel];
  const Link& link = links_.at(channel);
  while (!waiting.empty() && posted.size() < kAhead) {
    const Action action = waiting.front();
    waiting.pop_front();
    at::Tensor buffer = at::empty(options_.shape, options_.tensor);
    posted.push_back({{action.stage, action.micro_batch}, link.communicator->recv(buffer, link.peer), buffer});
  }
}

at::Tensor Executor::receive(const Action& action) {
  const Channel channel = channel_of(schedule_, action);
  Posted message = std::move(posted_[channel].front());
  posted_[channel].pop_front();
  MUSTER_CHECK(message.key == Key(action.stage, action.micro_batch));
  post_receives(channel);
  message.work->wait();
  return message.buffer;
}

void Executor::send(const Action& action, const at::Tensor& tensor) {
  const Link& link = links_.at(channel_of(schedule_, action));
  sends_.push_back(link.communicator->send(tensor.contiguous(), link.peer));
}

void Executor::forward(const Action& action) {
  const Key key{action.stage, action.micro_batch};
  const bool last = action.stage + 1 == schedule_.stages();
  Pass& pass = passes_[key];
  peak_live_ = std::max(peak_live_, static_cast<int>(passes_.size()));
  if (action.stage > 0) {
    pass.input = inputs_.at(key).detach().set_requires_grad(true);
    inputs_.erase(key);
  }
  const at::Tensor output = stages_.forward(action.stage, action.micro_batch, pass.input);
  const torch::autograd::Edge root = torch::autograd::impl::gradient_edge(output);
  pass.backward = [root](const at::Tensor& gradient) { torch::autograd::Engine::get_default_engine().execute({root}, {gradient}, false, false, true); };
  const at::Tensor value = output.detach();
  if (last) {
    losses_[action.micro_batch] = value;
    gradients_[key] = at::ones_like(value);
  } else if (here(action.stage + 1)) {
    inputs_[{action.stage + 1, action.micro_batch}] = value;
  } else {
    MUSTER_CHECK(value.sizes() == at::IntArrayRef(options_.shape));
    pass.output = value;
  }
}

void Executor::backward(const Action& action) {
  const Key key{action.stage, action.micro_batch};
  Pass& pass = passes_.at(key);
  const bool whole = action.kind == Kind::kBackward;
  const auto parameters = stages_.parameters(action.stage);
  for (Parameter* p : parameters) p->deferred = whole ? nullptr : &pass.deferred;
  pass.backward(gradients_.at(key));
  for (Parameter* p : parameters) p->deferred = nullptr;
  pass.backward = nullptr;  // frees the graph
  gradients_.erase(key);
  if (action.stage > 0) {
    const at::Tensor& gradient = gradients_[{action.stage - 1, action.micro_batch}] = pass.input.grad();
    MUSTER_CHECK(gradient.defined());
  }
  pass.input = at::Tensor();
  if (whole) passes_.erase(key);
}

void Executor::backward_weight(const Action& action) {
  const Key key{action.stage, action.micro_batch};
  const c10::AutoGradMode no_graph(false);
  for (const auto& work : passes_.at(key).deferred) work();
  passes_.erase(key);
}

}  // namespace muster::sharding::pipeline
