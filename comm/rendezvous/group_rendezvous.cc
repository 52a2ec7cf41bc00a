#include "comm/rendezvous/group_rendezvous.h"

#include <algorithm>
#include <set>

#include "comm/base/error.h"

namespace muster::comm {
namespace {

// The first byte of what a rank gives to the parent's exchange.
constexpr char kMessage = 'm', kFinished = 'f';

}  // namespace

GroupRendezvous::GroupRendezvous(Rendezvous& parent, std::vector<int> members, Deadline deadline)
    : parent_(parent), members_(std::move(members)) {
  const Place& whole = parent.place();
  const auto self = std::find(members_.begin(), members_.end(), whole.rank);
  MUSTER_CHECK(self != members_.end());
  place_.rank = static_cast<int>(self - members_.begin());
  place_.world_size = static_cast<int>(members_.size());
  place_.source = "group";
  const auto nodes = exchange(std::to_string(whole.node), deadline);
  const std::set<std::string> distinct(nodes.begin(), nodes.end());
  place_.node_count = static_cast<int>(distinct.size());
  place_.node = static_cast<int>(std::distance(distinct.begin(), distinct.find(nodes[place_.rank])));
  place_.local_world_size = static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes[place_.rank]));
  place_.local_rank = static_cast<int>(std::count(nodes.begin(), nodes.begin() + place_.rank, nodes[place_.rank]));
}

std::vector<std::string> GroupRendezvous::exchange(std::string_view mine, Deadline deadline) {
  const auto all = parent_.exchange(kMessage + std::string(mine), deadline);
  std::vector<std::string> ours;
  for (const int member : members_) {
    const std::string& theirs = all[member];
    if (theirs.empty() || theirs[0] != kMessage) {
      throw PeerError({member, "exchange", 0, "has left the group's start already"});
    }
    ours.push_back(theirs.substr(1));
  }
  return ours;
}

void GroupRendezvous::finish(Deadline deadline) {
  const auto finished = [](const std::string& theirs) { return !theirs.empty() && theirs[0] == kFinished; };
  while (true) {
    const auto all = parent_.exchange(std::string(1, kFinished), deadline);
    if (std::all_of(all.begin(), all.end(), finished)) return;
  }
}

}  // namespace muster::comm
