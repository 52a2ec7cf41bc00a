#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "sharding/mesh/mesh.h"

namespace muster::sharding {

using CommunicatorFactory = std::function<std::unique_ptr<comm::Communicator>(comm::Rendezvous&, const std::string& name)>;

// A rank's communicators, one an axis that needs one, made eagerly in one order on all ranks. Groups of one rank are loopback;
// a group that is the whole job is the world's communicator itself.
//
// Ownership: holds what it made; the world's communicator must outlive it.
class Groups {
 public:
  // own_gather: parameters are gathered on a communicator of their own (ZeRO-3). Collective over the rendezvous.
  Groups(const Mesh& mesh, comm::Rendezvous& rendezvous, comm::Communicator& world, const CommunicatorFactory& factory, bool own_gather,
         Deadline deadline);

  comm::Communicator& world() const { return world_; }
  comm::Communicator& shard() const { return *shard_; }      // cut each bucket among them
  comm::Communicator& replica() const { return *replica_; }  // hold the same shard
  comm::Communicator& gather() const { return *gather_; }    // the ranks of shard()

 private:
  comm::Communicator* open(const Mesh& mesh, const std::vector<Axis>& axes, const std::string& name, bool own);

  comm::Communicator& world_;
  comm::Rendezvous& rendezvous_;
  const CommunicatorFactory factory_;
  const Deadline deadline_;
  std::vector<std::unique_ptr<comm::Communicator>> made_;
  comm::Communicator *shard_ = nullptr, *replica_ = nullptr, *gather_ = nullptr;
};

}  // namespace muster::sharding
