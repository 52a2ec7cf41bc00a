#include "sharding/mesh/groups.h"

#include "comm/collective/backends.h"
#include "comm/rendezvous/group_rendezvous.h"

namespace muster::sharding {

Groups::Groups(const Mesh& mesh, comm::Rendezvous& rendezvous, comm::Communicator& world, const CommunicatorFactory& factory, bool own_gather,
               Deadline deadline)
    : world_(world), rendezvous_(rendezvous), factory_(factory), deadline_(deadline) {
  shard_ = open(mesh, {Axis::kShard}, "shard", false);
  replica_ = open(mesh, {Axis::kReplica}, "replica", false);
  gather_ = own_gather ? open(mesh, {Axis::kShard}, "gather", true) : shard_;
}

comm::Communicator* Groups::open(const Mesh& mesh, const std::vector<Axis>& axes, const std::string& name, bool own) {
  const auto members = mesh.group(axes);
  if (members.size() == 1) return made_.emplace_back(comm::make_loopback_communicator()).get();
  if (members.size() == static_cast<size_t>(world_.size()) && !own) return &world_;
  comm::GroupRendezvous group(rendezvous_, members, deadline_);
  auto& made = made_.emplace_back(factory_(group, name));
  group.finish(deadline_);
  return made.get();
}

}  // namespace muster::sharding
