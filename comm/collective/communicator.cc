#include "comm/collective/communicator.h"

namespace muster::comm {

std::string_view to_string(OpKind kind) {
  static constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                "send",       "recv",           "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace muster::comm
