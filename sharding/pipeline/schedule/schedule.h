#pragma once
// A pipeline schedule as data: for each rank the ordered list of what it does in one step (docs/pipeline.md).
// Generators, validator, simulator, picture and executor all read this list; none of them knows a schedule by name. No tensors
// here.

#include <string>
#include <string_view>
#include <vector>

namespace muster::sharding::pipeline {

enum class Kind {
  kForward,
  kBackward,        // both parts at once
  kBackwardInput,   // gradient of the stage's input: what the stage before waits for
  kBackwardWeight,  // gradient of the stage's weights, any time after its input part
  kSendActivation,  // output of this stage, to the stage after
  kRecvActivation,  // input of this stage, from the stage before
  kSendGradient,    // gradient of this stage's input, to the stage before
  kRecvGradient,    // gradient of this stage's output, from the stage after
  kReduce,          // the stage's gradients are complete: start their reduction over data-parallel ranks
  kUnshard,         // the stage's parameters are needed from here on
};

// One entry of a rank's list. `stage` is always a stage of the rank that holds the list, for messages too.
struct Action {
  Kind kind = Kind::kForward;
  int stage = 0;         // global: 0 reads the batch, the last computes the loss
  int micro_batch = -1;  // -1: kReduce and kUnshard, which concern the whole step
  bool operator==(const Action&) const = default;
};

// A value. A rank walks its list in order. Sends are asynchronous and never wait; a receive waits for its message; every other
// action is the rank's own. Messages of one Channel arrive in the order in which they were sent.
struct Schedule {
  std::string name;
  int ranks = 0;
  int micro_batches = 0;
  int chunks = 0;                            // stages a rank
  std::vector<int> rank_of_stage;            // size ranks * chunks
  std::vector<std::vector<Action>> actions;  // [rank]

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  std::vector<int> stages_of(int rank) const;  // ascending: chunk 0, 1, ...
  bool operator==(const Schedule&) const = default;
};

// The messages of one direction between two ranks: what needs a communicator of its own.
struct Channel {
  int from = 0, to = 0;  // ranks
  bool gradients = false;
  auto operator<=>(const Channel&) const = default;
};

bool is_send(Kind kind);
bool is_receive(Kind kind);
bool is_message(Kind kind);

// The other stage of a message. Undefined for other actions.
int peer_stage(const Action& message);
// The channel of a message of this schedule; its stages must exist.
Channel channel_of(const Schedule& schedule, const Action& message);
// The message at its other end.
Action counterpart(const Action& message);
// Every channel that the schedule uses, sorted: made eagerly and in this order on every rank.
std::vector<Channel> channels(const Schedule& schedule);

// "3F0", "3B0", "3I0", "3W0", "3SEND_F0", "3RECV_F0", "3SEND_B0", "3RECV_B0", "3REDUCE_GRAD", "3UNSHARD": stage, kind,
// micro-batch, as in PyTorch's schedule files.
std::string to_text(const Action& action);
// Whether `text` is such an action; numbers have at most seven digits.
bool parse_action(std::string_view text, Action& action);

}  // namespace muster::sharding::pipeline
