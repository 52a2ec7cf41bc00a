#pragma once
// One factory a backend. All are collective over the rendezvous (its place() gives rank and size) and throw what its
// exchange throws.

#include <memory>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {

// World size 1.
std::unique_ptr<Communicator> make_loopback_communicator();

// CPU tensors.
std::unique_ptr<Communicator> make_host_communicator(Rendezvous& rendezvous, CommunicatorOptions options = {});

// GPU tensors on `device` (CUDA ordinal). Defined in nccl/ or, in a build without CUDA, in nccl_absent.cc, where it throws
// InputError with the advice.
std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous& rendezvous, int device, CommunicatorOptions options = {});

}  // namespace muster::comm
