#pragma once
// Which way bytes travel is agreed on once, when the communicator is made.

#include "comm/collective/host/data_path.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm::host {

// Collective over the rendezvous. Blocks until all ranks are connected or the session's timeout passes.
//
// auto: shared memory where all ranks share a node (same Place.node and boot id of the kernel); else, and where the shared
// memory cannot be had or reached (with a line in the log), ZeroMQ over tcp.
// Environment, the same on all ranks:
//   MUSTER_HOST_TRANSPORT  shm | ipc | tcp | inproc | auto (default). inproc: ranks are threads of one process.
//   MUSTER_HOST_ADDRESS    the IPv4 address that tcp binds to. Default: 127.0.0.1 where all ranks share a node, else the
//                          address of the default route.
// Failure: InputError for a transport that is unknown, differs between ranks or cannot work here; PeerError for a lost peer.
std::unique_ptr<DataPath> connect(Rendezvous& rendezvous, const std::shared_ptr<Session>& session);

}  // namespace muster::comm::host
