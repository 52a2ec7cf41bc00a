#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

// What each agent tells the others in their first exchange; rank 0 also says where the control plane is.
struct Introduction {
  std::string host;
  std::string error;       // why this rank cannot take part; then nothing is started anywhere
  std::string address;     // rank 0: as seen from other nodes
  int port = 0;            // rank 0: of the control plane
  std::string key;         // rank 0: of the control plane
  std::string run_folder;  // rank 0: absolute
};

std::string to_text(const Introduction& introduction);
// PeerError naming the rank where the text is none of ours.
Introduction introduction_from(const std::string& text, int rank);

// An address of this machine that other nodes can reach: MUSTER_MASTER_ADDR, else the first interface that is neither
// loopback nor a container's bridge, else the host name.
std::string own_address();

}  // namespace muster::launcher
