#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "comm/topology/graph.h"

namespace muster::comm::topology {

inline constexpr int kMaxNvLinks = 18;  // of one GPU, up to Blackwell

struct MatrixRow;

// The parts of a matrix as nvidia-smi prints it, not yet understood.
struct MatrixText {
  enum Extra { kCpuAffinity, kNumaAffinity, kGpuNumaId };
  std::vector<std::string> columns;  // "GPU0", "NIC1", "mlx5_0"
  std::vector<Extra> extras;         // the columns after the devices, as far as this driver prints them
  std::vector<MatrixRow> rows;
  std::map<std::string, std::string> legend;  // "NIC0" -> "mlx5_0"
  std::vector<Finding> findings;
  int header_line = 0;
};

struct MatrixRow {
  std::string label;
  std::vector<std::string> cells;
  std::map<MatrixText::Extra, std::string> extras;
  int line = 0;
};

// Copes with tabs or blanks, escape sequences, names run together ("NIC11NIC12"), text before the header, rows that are cut off
// and columns that older drivers do not print. InputError where no header line is found.
MatrixText split_matrix(std::string_view text, const std::string& file);

// Whether the text has a header line of devices.
bool has_matrix_header(std::string_view text);
// Whether its cells are P2P states (OK, NS, ...).
bool has_p2p_cells(std::string_view text);

}  // namespace muster::comm::topology
