#include "fsdp/comm/rendezvous/port_wait.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{10};
constexpr milliseconds kLongestRetry{500};
constexpr milliseconds kLongestAttempt{3000};  // a packet that is lost is sent again after 1 s

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

milliseconds time_until(Clock::time_point until) {
  return std::max(milliseconds{0}, std::chrono::duration_cast<milliseconds>(until - Clock::now()));
}

// 0, or the error.
int finish_connecting(int fd, milliseconds patience) {
  pollfd wanted{fd, POLLOUT, 0};
  const int count = poll(&wanted, 1, static_cast<int>(patience.count()));
  if (count == 0) return ETIMEDOUT;
  if (count < 0) return errno;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

int try_address(const addrinfo& address, milliseconds patience) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) error = finish_connecting(fd, patience);
  close(fd);
  return error;
}

std::string try_once(const std::string& host, uint16_t port, Clock::time_point until) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) return gai_strerror(failure);
  const Addresses addresses(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    error = try_address(*address, std::min(kLongestAttempt, time_until(until)));
    if (error == 0) return "";
  }
  return std::strerror(error);
}

}  // namespace

std::string wait_for_port(const std::string& host, uint16_t port, milliseconds patience) {
  const auto until = Clock::now() + patience;
  for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    const std::string failure = try_once(host, port, until);
    if (failure.empty() || Clock::now() >= until) return failure;
    std::this_thread::sleep_for(std::min(pause, time_until(until)));
  }
}

}  // namespace fsdp::comm
