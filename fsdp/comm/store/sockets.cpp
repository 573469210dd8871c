#include "fsdp/comm/store/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
constexpr int kBacklog = 4096;                 // the system cuts it to what it allows
constexpr size_t kReceiveBytes = 1 << 16;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

milliseconds time_until(Clock::time_point until) {
  return std::max(milliseconds{0}, std::chrono::ceil<milliseconds>(until - Clock::now()));
}

// Null with a failure number of getaddrinfo().
Addresses look_up(const std::string& host, uint16_t port, int kind, int& failure) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = kind;
  addrinfo* found = nullptr;
  failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {failure == 0 ? found : nullptr, &freeaddrinfo};
}

// Whether one of `events` came.
bool wait_for_events_of(int fd, short events, Clock::time_point until) {
  pollfd item{fd, events, 0};
  while (true) {
    const int count = poll(&item, 1, static_cast<int>(std::min<int64_t>(time_until(until).count(), 1'000'000)));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (Clock::now() >= until) return false;
  }
}

// 0, or the error.
int finish_connecting(int fd, Clock::time_point until) {
  if (!wait_for_events_of(fd, POLLOUT, until)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// Where nobody listens at a port that the system gives to clients, a socket can be connected to itself.
bool is_own_echo(int fd) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_size = sizeof(own);
  socklen_t other_size = sizeof(other);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
         std::memcmp(&own, &other, own_size) == 0;
}

Socket connect_to_address(const addrinfo& address, milliseconds patience) {
  Socket result{FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), 0};
  if (!result.descriptor) return {FileDescriptor(), errno};
  const int fd = result.descriptor.get();
  result.error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (result.error == EINPROGRESS) result.error = finish_connecting(fd, Clock::now() + patience);
  if (result.error == 0 && is_own_echo(fd)) result.error = ECONNREFUSED;
  if (result.error != 0) return {FileDescriptor(), result.error};
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  return result;
}

Socket listen_at_address(const sockaddr* address, socklen_t size) {
  Socket result{FileDescriptor(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), 0};
  const int fd = result.descriptor.get();
  const int yes = 1;
  const int no = 0;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (fd >= 0 && address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (fd >= 0 && bind(fd, address, size) == 0 && listen(fd, kBacklog) == 0) return result;
  return {FileDescriptor(), errno};
}

std::string numeric(const sockaddr_storage& address, socklen_t size, bool with_port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return with_port ? std::string(host.data()) + ":" + port.data() : host.data();
}

// "" if there is no route. connect() of a datagram socket sends nothing and chooses the address.
std::string own_address_towards(const addrinfo& target) {
  const FileDescriptor probe(socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  const bool is_known = probe && connect(probe.get(), target.ai_addr, target.ai_addrlen) == 0 &&
                        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0;
  return is_known ? numeric(local, size, false) : "";
}

}  // namespace

Socket listen_on(Reach reach, uint16_t port) {
  sockaddr_in version4{};
  version4.sin_family = AF_INET;
  version4.sin_port = htons(port);
  version4.sin_addr.s_addr = htonl(reach == Reach::kThisHost ? INADDR_LOOPBACK : INADDR_ANY);
  if (reach == Reach::kAllHosts) {
    sockaddr_in6 both{};
    both.sin6_family = AF_INET6;
    both.sin6_port = htons(port);
    both.sin6_addr = in6addr_any;
    Socket result = listen_at_address(reinterpret_cast<const sockaddr*>(&both), sizeof(both));
    if (result.descriptor || result.error == EADDRINUSE) return result;
  }
  return listen_at_address(reinterpret_cast<const sockaddr*>(&version4), sizeof(version4));
}

uint16_t port_of(const FileDescriptor& listener) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&local), &size);
  // The port stands at the same place in both kinds.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&local)->sin_port);
}

Attempted try_to_connect(const std::string& host, uint16_t port, milliseconds patience) {
  int failure = 0;
  const Addresses addresses = look_up(host, port, SOCK_STREAM, failure);
  if (failure != 0) return {FileDescriptor(), gai_strerror(failure)};
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket = connect_to_address(*address, std::min(kLongestAttempt, patience));
    if (socket.descriptor) return {std::move(socket.descriptor), ""};
    error = socket.error;
  }
  return {FileDescriptor(), std::strerror(error)};
}

Attempted connect_within(const std::string& host, uint16_t port, milliseconds patience) {
  const auto until = Clock::now() + patience;
  for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    Attempted attempted = try_to_connect(host, port, time_until(until));
    if (attempted.connection || Clock::now() >= until) return attempted;
    std::this_thread::sleep_for(std::min(pause, time_until(until)));
  }
}

std::string address_towards(const std::string& target, uint16_t port) {
  int failure = 0;
  const Addresses addresses = look_up(target, port, SOCK_DGRAM, failure);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const std::string own = own_address_towards(*address);
    if (!own.empty()) return own;
  }
  return "127.0.0.1";
}

std::string peer_of(const FileDescriptor& connection) {
  sockaddr_storage other{};
  socklen_t size = sizeof(other);
  if (getpeername(connection.get(), reinterpret_cast<sockaddr*>(&other), &size) != 0) return "somebody";
  const std::string text = numeric(other, size, true);
  constexpr std::string_view kMapped = "::ffff:";  // version 4 on a socket of both
  return text.rfind(kMapped, 0) == 0 ? text.substr(kMapped.size()) : text;
}

bool send_all(const FileDescriptor& connection, std::string_view bytes, Clock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t count = send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for_events_of(connection.get(), POLLOUT, until)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool receive_some(const FileDescriptor& connection, std::string& bytes, Clock::time_point until) {
  const size_t begin = bytes.size();
  while (true) {
    bytes.resize(begin + kReceiveBytes);
    const ssize_t count = recv(connection.get(), bytes.data() + begin, kReceiveBytes, 0);
    const int error = errno;
    bytes.resize(begin + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count > 0) return true;
    if (count == 0 || (error != EAGAIN && error != EINTR)) return false;
    if (error == EAGAIN && !wait_for_events_of(connection.get(), POLLIN, until)) return false;
  }
}

}  // namespace fsdp::comm
