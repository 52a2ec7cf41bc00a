#pragma once

#include <vector>

#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {

// A part of the job as a rendezvous of its own, so that communicators of groups are made like that of the whole. All ranks of the
// parent construct one at the same time, each naming its own group (the groups are disjoint and cover the parent), and all call
// finish() when their group needs it no longer: groups may exchange different numbers of times in between.
//
// Threads, failure: as the parent, which must outlive it.
class GroupRendezvous : public Rendezvous {
 public:
  // members: ranks of the parent, ascending, this one among them. Collective over the parent.
  GroupRendezvous(Rendezvous& parent, std::vector<int> members, Deadline deadline);
  const Place& place() const override { return place_; }
  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override;
  // Blocks until every group has finished. Collective over the parent.
  void finish(Deadline deadline);

 private:
  Rendezvous& parent_;
  const std::vector<int> members_;
  Place place_;
};

}  // namespace muster::comm
