#include "comm/base/error.h"
#include "comm/collective/backends.h"

namespace muster::comm {

std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous&, int, CommunicatorOptions) {
  refuse("backend: found 'nccl', but this program is built without CUDA; build with -DMUSTER_CUDA=ON where a CUDA toolkit is, or use --backend host");
}

}  // namespace muster::comm
