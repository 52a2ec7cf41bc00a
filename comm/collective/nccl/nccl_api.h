#pragma once
// Every NCCL call that Muster makes, behind one class, so that the communicator is tested without a GPU.

#include <memory>
#include <string>

#include <nccl.h>

namespace muster::comm::nccl {

// Threads: as NCCL's own functions. One object a process.
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  [[nodiscard]] virtual int version() = 0;  // 23203 for 2.32.3
  [[nodiscard]] virtual ncclResult_t get_unique_id(ncclUniqueId* id) = 0;
  [[nodiscard]] virtual ncclResult_t comm_init_rank(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) = 0;
  [[nodiscard]] virtual ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error) = 0;
  [[nodiscard]] virtual ncclResult_t comm_abort(ncclComm_t comm) = 0;
  [[nodiscard]] virtual ncclResult_t comm_finalize(ncclComm_t comm) = 0;
  [[nodiscard]] virtual ncclResult_t comm_destroy(ncclComm_t comm) = 0;
  [[nodiscard]] virtual ncclResult_t all_reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t reduce_scatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t all_gather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t broadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t send(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t recv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) = 0;
  [[nodiscard]] virtual ncclResult_t group_start() = 0;
  [[nodiscard]] virtual ncclResult_t group_end() = 0;
  [[nodiscard]] virtual std::string error_text(ncclResult_t error) = 0;
};

// The NCCL of this process: the one that LibTorch has loaded, else libnccl.so.2 of the library path. Logs its version and path, once.
// InputError: none found, or one of another major version than the header this was compiled with; older minor versions warn.
NcclApi& process_nccl();

// InputError, or a warning, as said above.
void check_version(int loaded, int compiled, const std::string& path);

std::string version_text(int version);  // "2.32.3"

}  // namespace muster::comm::nccl
