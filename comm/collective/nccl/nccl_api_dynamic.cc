#include <dlfcn.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/collective/nccl/nccl_api.h"

namespace muster::comm::nccl {
namespace {

// Functions of a loaded library by name, with the types of the header.
class DynamicNccl : public NcclApi {
 public:
  DynamicNccl() {
    library_ = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (!library_) library_ = ::dlopen("libnccl.so.2", RTLD_NOW);
    if (!library_) refuse("NCCL: found no libnccl.so.2 ({}), wanted one beside LibTorch or in LD_LIBRARY_PATH; ./scripts/setup --full brings it", ::dlerror());
    load(get_version_, "ncclGetVersion");
    load(get_unique_id_, "ncclGetUniqueId");
    load(comm_init_rank_, "ncclCommInitRankConfig");
    load(comm_async_error_, "ncclCommGetAsyncError");
    load(comm_abort_, "ncclCommAbort");
    load(comm_finalize_, "ncclCommFinalize");
    load(comm_destroy_, "ncclCommDestroy");
    load(all_reduce_, "ncclAllReduce");
    load(reduce_scatter_, "ncclReduceScatter");
    load(all_gather_, "ncclAllGather");
    load(broadcast_, "ncclBroadcast");
    load(send_, "ncclSend");
    load(recv_, "ncclRecv");
    load(group_start_, "ncclGroupStart");
    load(group_end_, "ncclGroupEnd");
    load(error_text_, "ncclGetErrorString");
    Dl_info info{};
    const std::string path = ::dladdr(reinterpret_cast<void*>(get_version_), &info) && info.dli_fname ? info.dli_fname : "libnccl.so.2";
    check_version(version(), NCCL_VERSION_CODE, path);
    log_info("NCCL {} from {} (compiled against {})", version_text(version()), path, version_text(NCCL_VERSION_CODE));
  }

  int version() override {
    int version = 0;
    return get_version_(&version) == ncclSuccess ? version : 0;
  }
  ncclResult_t get_unique_id(ncclUniqueId* id) override { return get_unique_id_(id); }
  ncclResult_t comm_init_rank(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) override {
    return comm_init_rank_(comm, size, id, rank, config);
  }
  ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error) override { return comm_async_error_(comm, error); }
  ncclResult_t comm_abort(ncclComm_t comm) override { return comm_abort_(comm); }
  ncclResult_t comm_finalize(ncclComm_t comm) override { return comm_finalize_(comm); }
  ncclResult_t comm_destroy(ncclComm_t comm) override { return comm_destroy_(comm); }
  ncclResult_t all_reduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override {
    return all_reduce_(in, out, n, type, op, comm, stream);
  }
  ncclResult_t reduce_scatter(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) override {
    return reduce_scatter_(in, out, n, type, op, comm, stream);
  }
  ncclResult_t all_gather(const void* in, void* out, size_t n, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) override {
    return all_gather_(in, out, n, type, comm, stream);
  }
  ncclResult_t broadcast(const void* in, void* out, size_t n, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) override {
    return broadcast_(in, out, n, type, root, comm, stream);
  }
  ncclResult_t send(const void* in, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) override {
    return send_(in, n, type, peer, comm, stream);
  }
  ncclResult_t recv(void* out, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) override {
    return recv_(out, n, type, peer, comm, stream);
  }
  ncclResult_t group_start() override { return group_start_(); }
  ncclResult_t group_end() override { return group_end_(); }
  std::string error_text(ncclResult_t error) override { return error_text_(error); }

 private:
  template <typename F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library_, name));
    if (!function) refuse("NCCL: libnccl.so.2 has no {}; wanted NCCL >= 2.18", name);
  }

  void* library_ = nullptr;  // never closed: NCCL's threads may run until the process ends
  decltype(&ncclGetVersion) get_version_ = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id_ = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_ = nullptr;
  decltype(&ncclCommGetAsyncError) comm_async_error_ = nullptr;
  decltype(&ncclCommAbort) comm_abort_ = nullptr;
  decltype(&ncclCommFinalize) comm_finalize_ = nullptr;
  decltype(&ncclCommDestroy) comm_destroy_ = nullptr;
  decltype(&ncclAllReduce) all_reduce_ = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter_ = nullptr;
  decltype(&ncclAllGather) all_gather_ = nullptr;
  decltype(&ncclBroadcast) broadcast_ = nullptr;
  decltype(&ncclSend) send_ = nullptr;
  decltype(&ncclRecv) recv_ = nullptr;
  decltype(&ncclGroupStart) group_start_ = nullptr;
  decltype(&ncclGroupEnd) group_end_ = nullptr;
  decltype(&ncclGetErrorString) error_text_ = nullptr;
};

}  // namespace

NcclApi& process_nccl() {
  static auto* api = new DynamicNccl;  // leaked: communicators may end after static destructors have run
  return *api;
}

}  // namespace muster::comm::nccl
