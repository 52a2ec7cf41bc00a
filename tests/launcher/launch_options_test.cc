#include "launcher/launch_options.h"

#include <gmock/gmock.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
    return "accepted";
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string refusal(const std::vector<std::string>& words) {
  return refusal([&] { parse_launch_options(words); });
}

TEST(LaunchOptions, OwnOptionsAndSettingsMix) {
  const auto o = parse_launch_options({"run.yaml", "--lr", "-1", "-n", "4", "--dry-run", "--engine=local", "--grace-s", "2.5",
                                       "--verbose", "--overlap-grad-reduce"});
  EXPECT_EQ(o.ranks, 4);
  EXPECT_EQ(o.engine, Engine::kLocal);
  EXPECT_EQ(o.grace_s, 2.5);
  EXPECT_TRUE(o.dry_run);
  EXPECT_TRUE(o.verbose);
  EXPECT_THAT(o.run.words(), ElementsAre("run.yaml", "--lr", "-1", "--overlap-grad-reduce"));
}

TEST(LaunchOptions, TheConfigurationMayComeAfterTheOptions) {
  const auto o = parse_launch_options({"-n", "2", "run.yaml", "--lr", "1"});
  EXPECT_EQ(o.run.config_path, "run.yaml");
  EXPECT_TRUE(parse_launch_options({"--help"}).help);
}

TEST(LaunchOptions, BadNumbers) {
  for (const char* bad : {"0", "-1", "two", "2x", "", "1.5", "99999", "99999999999999999999"}) {
    EXPECT_THAT(refusal({"-n", bad}), HasSubstr("-n: found '" + std::string(bad) + "', wanted a whole number from 1")) << bad;
    EXPECT_THAT(refusal({"--nproc-per-node", bad}), HasSubstr("--nproc-per-node: found")) << bad;
  }
  EXPECT_THAT(refusal({"--grace-s", "-1"}), HasSubstr("--grace-s: found '-1'"));
  EXPECT_THAT(refusal({"--grace-s", "nan"}), HasSubstr("--grace-s: found 'nan'"));
  EXPECT_THAT(refusal({"-n"}), HasSubstr("-n: needs a value"));
}

TEST(LaunchOptions, MistypedOptions) {
  EXPECT_THAT(refusal({"--engine", "slurm"}), HasSubstr("--engine: found 'slurm', wanted auto, mpirun or local"));
  EXPECT_THAT(refusal({"-m", "2"}), HasSubstr("unknown option '-m', did you mean -n?"));
  EXPECT_THAT(refusal({"a.yaml", "b.yaml"}), HasSubstr("found 'b.yaml'"));
}

TEST(LaunchOptions, Hosts) {
  EXPECT_THAT(parse_hosts("--hosts", "a:2,b-1.c_d"), ElementsAre(Host{"a", 2}, Host{"b-1.c_d", 0}));
  for (const char* bad : {"", "a,,b", "a:", "a:0", "a:x", ":2", "a b", "-oProxyCommand=x", "a;b"}) {
    EXPECT_THAT(refusal([&] { parse_hosts("--hosts", bad); }), HasSubstr("--hosts: found")) << bad;
  }
  EXPECT_THAT(refusal({"--hosts", "a", "--hosts", "b"}), HasSubstr("wanted one"));
}

TEST(HostFile, LinesCommentsAndSlots) {
  const auto hosts = parse_host_file("F", "# cluster\n a slots=4 # fast\n\nb:2\r\nc");
  EXPECT_THAT(hosts, ElementsAre(Host{"a", 4}, Host{"b", 2}, Host{"c", 0}));
}

TEST(HostFile, ABadLineIsNamed) {
  EXPECT_THAT(refusal([] { parse_host_file("F", "a\nb slots=x\n"); }), HasSubstr("F:2: found 'x'"));
  EXPECT_THAT(refusal([] { parse_host_file("F", "a\n\nb max=3\n"); }), HasSubstr("F:3: found 'max=3', wanted 'name'"));
  EXPECT_THAT(refusal([] { parse_host_file("F", "a/b\n"); }), HasSubstr("F:1: found 'a/b', wanted a host name"));
  EXPECT_THAT(refusal([] { parse_host_file("F", "# nobody\n"); }), HasSubstr("names no host"));
}

TEST(HostFile, AMissingFileIsNamed) {
  EXPECT_THAT(refusal({"--hostfile", "/nowhere/hosts"}), HasSubstr("--hostfile: cannot open /nowhere/hosts: No such file"));
  EXPECT_THAT(refusal({"--hostfile", "/"}), HasSubstr("--hostfile: cannot"));
}

TEST(Nearest, OnlyWhatIsNear) {
  EXPECT_EQ(nearest("lunch", {"launch", "agent"}), "launch");
  EXPECT_EQ(nearest("agnet", {"launch", "agent"}), "agent");
  EXPECT_EQ(nearest("teapot", {"launch", "agent"}), "");
}

}  // namespace
}  // namespace muster::launcher
