#include "launcher/device_choice.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/topology/devices.h"

namespace muster::launcher {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class DeviceChoiceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("muster-devices-{}", getpid());
    fs::create_directories(folder_);
    add_program("muster-worker");
  }
  void TearDown() override {
    fs::remove_all(folder_);
    unsetenv("FAKE_GPUS");
  }
  void add_program(const std::string& name) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n";
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  void gpus(int count) { setenv("FAKE_GPUS", std::to_string(count).c_str(), 1); }
  DeviceChoice choose(const std::string& device, int ranks) { return choose_device(device, ranks, folder_, environment_); }
  std::string refusal(const std::string& device, int ranks) {
    try {
      choose(device, ranks);
      return "accepted";
    } catch (const InputError& error) {
      return error.what();
    }
  }

  fs::path folder_;
  comm::Environment environment_ = {{"MUSTER_NVML_LIBRARY", MUSTER_FAKE_NVML}};
};

TEST_F(DeviceChoiceTest, AutoTakesCudaOnlyWhereItCanRun) {
  EXPECT_EQ(choose("auto", 4).device, "cpu");
  gpus(2);
  EXPECT_EQ(choose("auto", 4).device, "cpu") << "no muster-worker-cuda";
  add_program("muster-worker-cuda");
  EXPECT_EQ(choose("auto", 2).device, "cuda");
  EXPECT_EQ(choose("auto", 2).worker, (folder_ / "muster-worker-cuda").string());
  EXPECT_EQ(choose("cpu", 9).worker, (folder_ / "muster-worker").string());
}

TEST_F(DeviceChoiceTest, MoreRanksThanGpus) {
  gpus(2);
  add_program("muster-worker-cuda");
  EXPECT_THAT(refusal("cuda", 3), HasSubstr("device: found 3 cuda ranks on this node, wanted at most its 2 visible GPUs"));
  EXPECT_THAT(refusal("auto", 3), HasSubstr("device: found 3 cuda ranks"));
  environment_["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
  EXPECT_EQ(choose("cuda", 3).device, "cuda");
}

TEST_F(DeviceChoiceTest, CudaThatCannotBeHad) {
  EXPECT_THAT(refusal("cuda", 1), HasSubstr("no GPU is visible"));
  gpus(1);
  EXPECT_THAT(refusal("cuda", 1), HasSubstr("this build has no"));
  environment_["MUSTER_NVML_LIBRARY"] = "/nowhere/libnvml.so";
  EXPECT_THAT(refusal("cuda", 1), HasSubstr("no GPU is visible"));
}

TEST_F(DeviceChoiceTest, AnotherWorker) {
  environment_["MUSTER_WORKER"] = "/bin/true";
  EXPECT_EQ(choose("cpu", 1).worker, "/bin/true");
  environment_["MUSTER_WORKER"] = "/nowhere/worker";
  EXPECT_THAT(refusal("cpu", 1), HasSubstr("/nowhere/worker: not an executable file"));
}

TEST_F(DeviceChoiceTest, CudaVisibleDevices) {
  gpus(4);
  const auto visible = [](const char* list) { return comm::visible_gpus(list, MUSTER_FAKE_NVML); };
  EXPECT_EQ(visible(nullptr), 4);
  EXPECT_EQ(visible(""), 0);
  EXPECT_EQ(visible("0"), 1);
  EXPECT_EQ(visible("2,0"), 2);
  EXPECT_EQ(visible("0,9,1"), 1) << "the driver stops at the first device that is none";
  EXPECT_EQ(visible("-1"), 0);
  EXPECT_EQ(visible("1,1"), 0) << "a repeated device makes the list void";
  EXPECT_EQ(visible("GPU-8932f937,1"), 2);
  EXPECT_EQ(comm::visible_gpus(nullptr, "/nowhere/libnvml.so"), 0);
}

}  // namespace
}  // namespace muster::launcher
