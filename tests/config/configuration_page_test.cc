// docs/configuration.md and the table of keys say the same.

#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "worker/config/config_keys.h"

namespace muster::worker {
namespace {

std::vector<std::string> page_lines() {
  std::ifstream in(MUSTER_SOURCE_DIR "/docs/configuration.md");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// "| `lr` | 0.001 | ..." -> {"`lr`", "0.001", ...}
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
    out.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return out;
}

std::vector<std::vector<std::string>> rows_of(const std::string& name) {
  std::vector<std::vector<std::string>> found;
  for (const auto& line : page_lines()) {
    if (line.starts_with("| `" + name + "` |")) found.push_back(cells(line));
  }
  return found;
}

TEST(ConfigurationPage, EveryKeyOnceWithItsDefaultUnderItsGroup) {
  const RunConfig defaults;
  for (const auto& key : config_keys()) {
    const auto rows = rows_of(key.name);
    ASSERT_EQ(rows.size(), 1u) << key.name;
    EXPECT_EQ(rows[0].at(1), get_key(defaults, key)) << key.name;
    for (const auto& choice : key.choices)
      EXPECT_NE((rows[0][1] + " " + rows[0].at(2)).find(choice), std::string::npos) << key.name << ": " << choice;
  }
}

TEST(ConfigurationPage, EveryAliasOnceWithItsKeys) {
  for (const auto& alias : config_aliases()) {
    const auto rows = rows_of(alias.alias);
    ASSERT_EQ(rows.size(), 1u) << alias.alias;
    for (const auto& key : alias.keys) EXPECT_NE(rows[0].at(2).find("`" + key + "`"), std::string::npos) << alias.alias;
  }
}

TEST(ConfigurationPage, NamesNoKeyThatIsNone) {
  int rows = 0;
  for (const auto& line : page_lines()) {
    if (!line.starts_with("| `")) continue;
    const std::string name = cells(line)[0];
    EXPECT_FALSE(find_keys(name.substr(1, name.size() - 2)).empty()) << line;
    ++rows;
  }
  EXPECT_EQ(static_cast<size_t>(rows), config_keys().size() + config_aliases().size());
}

}  // namespace
}  // namespace muster::worker
