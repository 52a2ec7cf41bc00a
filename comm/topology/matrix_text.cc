#include "comm/topology/matrix_text.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

constexpr size_t kMaxLines = 100000;

// Without ESC [ ... letter: drivers underline the header where they think that a terminal reads it.
std::string without_escapes(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\x1b') {
      out += text[at];
      continue;
    }
    if (at + 1 >= text.size() || text[at + 1] != '[') continue;
    for (at += 2; at < text.size() && !std::isalpha(static_cast<unsigned char>(text[at]));) ++at;
  }
  return out;
}

bool digits_only(std::string_view text) { return parse_unsigned(text).has_value(); }

// "GPU0", "NIC12".
bool is_numbered(std::string_view word, std::string_view prefix) {
  return word.starts_with(prefix) && digits_only(word.substr(prefix.size()));
}

bool is_header(const std::vector<std::string>& words) {
  return !words.empty() && words[0].starts_with("GPU") && words[0].size() > 3 &&
         std::isdigit(static_cast<unsigned char>(words[0][3])) &&
         std::none_of(words.begin(), words.end(), [](const std::string& w) { return w == "X"; });
}

// "NIC11NIC12" to its two names.
std::vector<std::string> apart(const std::string& word) {
  std::vector<std::string> out;
  size_t start = 0;
  for (size_t at = 1; at < word.size(); ++at) {
    const bool next = std::isdigit(static_cast<unsigned char>(word[at - 1])) &&
                      (word.compare(at, 3, "GPU") == 0 || word.compare(at, 3, "NIC") == 0 || word.compare(at, 4, "mlx5") == 0);
    if (!next) continue;
    out.push_back(word.substr(start, at - start));
    start = at;
  }
  out.push_back(word.substr(start));
  return out;
}

bool is_cell(const std::string& word) {
  static const std::set<std::string> kCells = {"X",  "PIX", "PXB", "PHB", "NODE", "SYS", "SOC",
                                               "OK", "NS",  "CNS", "GNS", "TNS",  "DR",  "U"};
  return kCells.contains(word) || is_numbered(word, "NV");
}

bool is_list(const std::string& word) { return word.find_first_of("-,") != std::string::npos && word != "N/A"; }

class Splitter {
 public:
  Splitter(std::string_view text, const std::string& file) : lines_(split_lines(without_escapes(text))), file_(file) {}

  bool find_header() {
    for (size_t i = 0; i < std::min(lines_.size(), kMaxLines); ++i) {
      if (!is_header(split_words(lines_[i]))) continue;
      header_ = i;
      return true;
    }
    return false;
  }

  MatrixText split() {
    if (!find_header()) refuse("{}: found no line GPU0 GPU1 ...; wanted the output of nvidia-smi topo -m", file_);
    out_.header_line = static_cast<int>(header_) + 1;
    read_header();
    for (size_t i = header_ + 1; i < std::min(lines_.size(), kMaxLines); ++i)
      read_line(static_cast<int>(i) + 1, split_words(lines_[i]));
    return std::move(out_);
  }

 private:
  void odd(int line, std::string found, std::string wanted) {
    out_.findings.push_back({fmt::format("{}:{}", file_, line), std::move(found), std::move(wanted)});
  }

  void read_header() {
    const auto words = split_words(lines_[header_]);
    for (size_t i = 0; i < words.size(); ++i) {
      const auto follows = [&](const char* word) { return i + 1 < words.size() && words[i + 1] == word; };
      if (words[i] == "CPU" && follows("Affinity")) {
        out_.extras.push_back(MatrixText::kCpuAffinity), ++i;
      } else if (words[i] == "NUMA" && follows("Affinity")) {
        out_.extras.push_back(MatrixText::kNumaAffinity), ++i;
      } else if (words[i] == "GPU" && follows("NUMA")) {
        out_.extras.push_back(MatrixText::kGpuNumaId), i += 2;
      } else {
        add_columns(words[i]);
      }
    }
    if (out_.columns.size() <= kMaxDevices) return;
    odd(out_.header_line, fmt::format("{} devices", out_.columns.size()), fmt::format("{} at most", kMaxDevices));
    out_.columns.resize(kMaxDevices);
  }

  void add_columns(const std::string& word) {
    if (!out_.extras.empty()) return odd(out_.header_line, in_quotes(word) + " after the affinities", "devices before them");
    for (auto& name : apart(word)) {
      if (!valid_name(name)) {
        odd(out_.header_line, "column " + in_quotes(name), "GPU#, NIC# or a device's name");
      }
      out_.columns.push_back(printable(name));
    }
  }

  static bool valid_name(const std::string& name) {
    return name.size() <= 40 && std::all_of(name.begin(), name.end(), [](char c) {
             return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
           });
  }

  void read_line(int line, const std::vector<std::string>& words) {
    if (words.empty()) return;
    if (words[0] == "Legend:") in_legend_ = true;
    if (words.size() == 2 && words[0].ends_with(":") && words[0].starts_with("NIC")) {
      out_.legend[words[0].substr(0, words[0].size() - 1)] = printable(words[1]);
      return;
    }
    const bool device = words[0].starts_with("GPU") ||
                        std::find(out_.columns.begin(), out_.columns.end(), words[0]) != out_.columns.end() ||
                        is_numbered(words[0], "NIC");
    if (in_legend_ || words[0] == "NIC" || !device) return;
    read_row(line, words);
  }

  void read_row(int line, const std::vector<std::string>& words) {
    MatrixRow row;
    row.label = printable(words[0]);
    row.line = line;
    size_t at = 1;
    for (; at < words.size() && row.cells.size() < out_.columns.size(); ++at) {
      if (is_list(words[at]) && !is_cell(words[at])) break;  // a CPU list: cells are missing
      if (!is_cell(words[at])) odd(line, "cell " + in_quotes(words[at]), "X, NV#, PIX, PXB, PHB, NODE or SYS");
      row.cells.push_back(printable(words[at]));
    }
    read_extras(row, {words.begin() + static_cast<long>(at), words.end()});
    out_.rows.push_back(std::move(row));
  }

  // Fields may be empty. A list stands under CPU Affinity; the others are told by their distance from the right.
  void read_extras(MatrixRow& row, std::vector<std::string> words) {
    auto columns = out_.extras;
    if (words.size() > columns.size()) {
      odd(row.line, fmt::format("{} words after the cells", words.size()), fmt::format("{} at most", columns.size()));
      words.resize(columns.size());
    }
    if (!words.empty() && !columns.empty() && columns[0] == MatrixText::kCpuAffinity && is_list(words[0])) {
      row.extras[columns[0]] = words[0];
      words.erase(words.begin());
      columns.erase(columns.begin());
    }
    for (size_t i = 0; i < words.size() && i < columns.size(); ++i)
      row.extras[columns[columns.size() - 1 - i]] = words[words.size() - 1 - i];
  }

  std::vector<std::string> lines_;
  const std::string& file_;
  size_t header_ = 0;
  bool in_legend_ = false;
  MatrixText out_;
};

}  // namespace

MatrixText split_matrix(std::string_view text, const std::string& file) { return Splitter(text, file).split(); }

bool has_matrix_header(std::string_view text) { return Splitter(text, "").find_header(); }

bool has_p2p_cells(std::string_view text) {
  const MatrixText matrix = split_matrix(text, "");
  static const std::set<std::string> kStates = {"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"};
  return std::any_of(matrix.rows.begin(), matrix.rows.end(), [](const MatrixRow& row) {
    return std::any_of(row.cells.begin(), row.cells.end(), [](const std::string& cell) { return kStates.contains(cell); });
  });
}

}  // namespace muster::comm::topology
