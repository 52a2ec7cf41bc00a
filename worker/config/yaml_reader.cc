#include "worker/config/yaml_reader.h"

#include <algorithm>
#include <map>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "comm/base/error.h"
#include "worker/config/config_keys.h"

namespace muster::worker {
namespace {

constexpr int kDeepestGroup = 8, kMostEntries = 1000;

// "model", "data" and "optimizer" are groups of the table and keys as well.
bool may_be_group(const std::string& name) {
  const auto& keys = config_keys();
  return find_keys(name).empty() ||
         std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.group == name; });
}

class DocumentStart : public YAML::EventHandler {
 public:
  int line = 0;  // from 1
  void OnDocumentStart(const YAML::Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// 0: there is none. YAML::Load would drop what follows the first document, and YAML::LoadAll never ends on some texts.
int line_of_second_document(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStart first, second;
  return parser.HandleNextDocument(first) && parser.HandleNextDocument(second) ? second.line : 0;
}

// A YAML file being read: where we are, and which keys it has set.
class YamlReader {
 public:
  YamlReader(RunConfig& config, std::string path) : config_(config), path_(std::move(path)) {}

  void read(const std::string& text) {
    try {
      if (const int line = line_of_second_document(text); line > 0)
        refuse("{}:{}: found more after the end of the mapping, wanted one document", path_, line);
      read_mapping(YAML::Load(text), 0);
    } catch (const YAML::Exception& e) {
      refuse("{}:{}:{}: not YAML: {}", path_, e.mark.line + 1, e.mark.column + 1, shown(e.msg));
    }
  }

 private:
  std::string where(const YAML::Node& node) const { return fmt::format("{}:{}", path_, node.Mark().line + 1); }

  void read_mapping(const YAML::Node& node, int depth) {
    if (node.IsNull()) return;
    if (!node.IsMap())
      refuse("{}: found {}, wanted a mapping of keys to values", where(node), node.IsSequence() ? "a list" : "a single value");
    // A YAML alias can make a mapping contain itself, or itself twice at each level.
    if (depth > kDeepestGroup) refuse("{}: groups are nested deeper than {}", where(node), kDeepestGroup);
    for (const auto& entry : node) read_entry(entry.first, entry.second, depth);
  }

  // A mapping as value is a group: it has no meaning of its own.
  void read_entry(const YAML::Node& name, const YAML::Node& value, int depth) {
    if (!name.IsScalar()) refuse("{}: found a key that is no word", where(name));
    if (++entries_ > kMostEntries) refuse("{}: more than {} entries", where(name), kMostEntries);
    if (value.IsMap() && may_be_group(name.Scalar())) return read_mapping(value, depth + 1);
    for (const ConfigKey* key : find_keys_or_refuse(name.Scalar(), where(name))) set_once(*key, name, value);
  }

  void set_once(const ConfigKey& key, const YAML::Node& name, const YAML::Node& value) {
    if (!value.IsScalar()) {
      refuse("{}: {}: found {}, wanted one value", where(name), key.name,
             value.IsNull()  ? "nothing"
             : value.IsMap() ? "a mapping"
                             : "a list");
    }
    const auto [earlier, fresh] = seen_.emplace(key.name, where(name));
    if (!fresh) refuse("{}: {} is already set at {}", where(name), key.name, earlier->second);
    set_key(config_, key, value.Scalar(), where(name));
  }

  RunConfig& config_;
  const std::string path_;
  std::map<std::string, std::string> seen_;
  int entries_ = 0;
};

}  // namespace

void read_yaml(RunConfig& config, const std::string& path, const std::string& text) { YamlReader(config, path).read(text); }

}  // namespace muster::worker
