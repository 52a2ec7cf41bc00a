#pragma once

#include <memory>

#include "comm/collective/communicator.h"
#include "comm/collective/nccl/device_api.h"
#include "comm/collective/nccl/nccl_api.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm::nccl {

// make_nccl_communicator (backends.h) over given NCCL and device. Before NCCL is asked: two ranks on one GPU are refused unless
// NCCL_MULTI_RANK_GPU_ENABLE=1 and the loaded NCCL is >= 2.32.
std::unique_ptr<Communicator> make_communicator(Rendezvous& rendezvous, NcclApi& api, std::unique_ptr<DeviceApi> device, CommunicatorOptions options);

}  // namespace muster::comm::nccl
