#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace fsdp::testing {

// Where this host listens, as /proc/net/tcp and tcp6 print it.
struct TcpListener {
  std::string address;
  uint16_t port = 0;
  std::string inode;  // of the socket
};

inline std::vector<TcpListener> tcp_listeners() {
  std::vector<TcpListener> listeners;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (state != "0A") continue;
      const size_t colon = local.rfind(':');
      const auto port = static_cast<uint16_t>(std::stoul(local.substr(colon + 1), nullptr, 16));
      listeners.push_back({local.substr(0, colon), port, inode});
    }
  }
  return listeners;
}

}  // namespace fsdp::testing
