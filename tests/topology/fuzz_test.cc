// Mutated machines: read, or refused with an InputError of one line. MUSTER_FUZZ_ITERATIONS sets how many for each reader.
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "comm/topology/bandwidth.h"
#include "comm/topology/readers.h"
#include "tests/topology/inputs.h"

namespace muster::comm::topology {
namespace {

struct Target {
  const char* name;
  const char* seed;
  Graph (*read)(std::string_view, const std::string&);
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

const Target kTargets[] = {{"Matrix", kMatrix, read_topo_matrix},
                           {"P2p", kP2p, read_p2p_matrix},
                           {"List", kList, read_smi_list},
                           {"Nccl", kNccl, read_nccl_xml},
                           {"NcclGraph", kNcclGraph, read_nccl_graph},
                           {"SmiXml", kSmiXml, read_smi_xml},
                           {"Hwloc", kHwloc, read_hwloc_xml},
                           {"Any", kMatrix, read_any}};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string operator()(const Target& target) {
    std::string text = random_() % 64 ? target.seed : kTargets[random_() % std::size(kTargets)].seed;
    for (uint64_t n = 1 + random_() % 6; n > 0; --n) mutate(text);
    return text;
  }

 private:
  void mutate(std::string& text) {
    static const std::string kWords[] = {"<",
                                         ">",
                                         "/>",
                                         "</",
                                         "\"",
                                         "&",
                                         "&amp;",
                                         "&#0;",
                                         "<!--",
                                         "-->",
                                         "<![CDATA[",
                                         "<!DOCTYPE [",
                                         "<pci busid=\"0000:11:00.0\">",
                                         "<gpu dev=\"0\"/>",
                                         "count=\"99999999999\"",
                                         "0-8191",
                                         "NV18",
                                         "NV19",
                                         "NV0",
                                         "X",
                                         "PIX",
                                         "GPU0",
                                         "GPU511",
                                         "GPU512",
                                         "NIC0",
                                         "N/A",
                                         "\t",
                                         "\n",
                                         "\x1b[",
                                         std::string(1, '\0'),
                                         "\xff",
                                         "-1",
                                         "4294967296",
                                         "ffffffff,",
                                         "0x",
                                         "<object type=\"PCIDev\">",
                                         "<object type=\"Bridge\">",
                                         "</object>",
                                         "<nic><net/></nic>",
                                         "0680",
                                         "GPU 0: a (UUID: b)",
                                         "Legend:"};
    const size_t at = text.empty() ? 0 : random_() % text.size();
    switch (random_() % 6) {
      case 0: text.insert(at, kWords[random_() % std::size(kWords)]); break;
      case 1: text.erase(at, random_() % 30); break;
      case 2: text.insert(at, text.substr(random_() % (text.size() + 1), random_() % 200)); break;
      case 3:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        break;
      case 4: text.resize(random_() % 8 ? text.size() : at); break;
      default: text.replace(at, random_() % 10, kWords[random_() % std::size(kWords)]); break;
    }
  }

  std::mt19937_64 random_;
};

bool one_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; });
}

void expect_symmetric(const Graph& graph) {
  for (const auto& a : graph.gpus)
    for (const auto& b : graph.gpus) ASSERT_EQ(graph.cell(gpu(a.index), gpu(b.index)), graph.cell(gpu(b.index), gpu(a.index)));
}

// Whatever was read can be shown.
void expect_usable(const Graph& graph, bool all) {
  for (const auto& finding : graph.findings) ASSERT_TRUE(one_line(finding.text())) << finding.text();
  if (!all) return;
  expect_symmetric(graph);
  ASSERT_EQ(to_text(graph), to_text(graph));
  to_json(graph), to_matrix(graph), to_tree(graph), to_svg(graph);
  if (graph.gpus.size() < 8) estimate_first_gpus(graph);
  Graph twice = graph;
  merge(twice, graph);
}

long iterations() {
  const char* wanted = std::getenv("MUSTER_FUZZ_ITERATIONS");
  return wanted ? std::atol(wanted) : 20000 / static_cast<long>(std::size(kTargets));
}

class TopologyFuzz : public testing::TestWithParam<Target> {};

TEST_P(TopologyFuzz, ReadsOrRefuses) {
  const Target& target = GetParam();
  Mutator mutated(7);
  long read = 0, refused = 0;
  for (long i = 0; i < iterations(); ++i) {
    const std::string text = mutated(target);
    try {
      expect_usable(target.read(text, "saved"), i % 16 == 0);
      ++read;
    } catch (const InputError& error) {
      ASSERT_TRUE(one_line(error.what())) << error.what();
      ++refused;
    }
    if (HasFatalFailure()) FAIL() << "input " << i << ":\n" << text;
  }
  EXPECT_GT(read, iterations() / 100);
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Readers, TopologyFuzz, testing::ValuesIn(kTargets), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::comm::topology
