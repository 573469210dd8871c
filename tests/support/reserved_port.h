#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace fsdp::testing {

// A port of 127.0.0.1 that is no other's while this lives, and at which nobody answers: connections are refused. A
// store may listen there beside it, as both sockets set SO_REUSEADDR. A port that was merely free a moment ago may by
// then be that of another test.
class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    const bool is_bound = setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                          bind(fd_, any, size) == 0 && getsockname(fd_, any, &size) == 0;
    port_ = ntohs(address.sin_port);
    if (is_bound) return;
    close(fd_);
    throw std::runtime_error("no free port");
  }
  ~ReservedPort() { close(fd_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  uint16_t number() const { return port_; }

 private:
  int fd_;
  uint16_t port_ = 0;
};

}  // namespace fsdp::testing
