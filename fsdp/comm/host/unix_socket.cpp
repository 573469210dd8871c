#include "fsdp/comm/host/unix_socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "fsdp/comm/host/shared_arena.h"

namespace fsdp::comm {
namespace {

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
};

// A leading zero makes the name abstract: it stands in no file system.
Address abstract_address(const std::string& name) {
  Address address;
  address.value.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.value.sun_path) - 1);
  std::memcpy(address.value.sun_path + 1, name.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

// Packets keep their bounds, so a greeting comes whole.
FileDescriptor make_socket(int flags) {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

// Names can be listed by every user of the host; memory is for our own processes.
bool is_our_user(const FileDescriptor& connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

struct FileMessage {
  FileMessage() {
    part = {&greeting, sizeof(greeting)};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  Greeting greeting;
  iovec part{};
  msghdr header{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace

std::string random_name() {
  std::array<unsigned char, 16> bits{};
  if (getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) return "";
  std::string name = "fsdp-";
  for (const unsigned char byte : bits) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

FileDescriptor listen_at(const std::string& name, int backlog) {
  FileDescriptor listener = make_socket(SOCK_NONBLOCK);
  const Address address = abstract_address(name);
  if (!listener || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.value), address.size) != 0 ||
      listen(listener.get(), backlog) != 0) {
    return {};
  }
  return listener;
}

Call connect_to(const std::string& name) {
  FileDescriptor connection = make_socket(SOCK_NONBLOCK);
  if (!connection) return {};
  const Address address = abstract_address(name);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.value), address.size) != 0) {
    return {FileDescriptor(), errno == EAGAIN};
  }
  if (!is_our_user(connection)) return {};
  return {std::move(connection), false};
}

FileDescriptor accept_at(const FileDescriptor& listener, std::chrono::milliseconds patience) {
  if (!is_readable(listener, patience)) return {};
  FileDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection && !is_our_user(connection)) return {};
  return connection;
}

bool send_greeting(const FileDescriptor& socket, const Greeting& greeting, const FileDescriptor& file) {
  FileMessage message;
  message.greeting = greeting;
  cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(item), &number, sizeof(number));
  return sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(greeting));
}

std::optional<Introduction> receive_greeting(const FileDescriptor& socket, std::chrono::milliseconds patience) {
  if (!is_readable(socket, patience)) return std::nullopt;
  FileMessage message;
  const ssize_t size = recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  if (item == nullptr || item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) return std::nullopt;
  int number = -1;
  std::memcpy(&number, CMSG_DATA(item), sizeof(number));
  Introduction introduction{message.greeting, FileDescriptor(number)};
  struct stat status {};
  const bool is_whole = size == static_cast<ssize_t>(sizeof(Greeting)) && keeps_its_size(introduction.file) &&
                        fstat(number, &status) == 0 && message.greeting.arena_bytes > 0 &&
                        status.st_size >= message.greeting.arena_bytes;
  if (!is_whole) return std::nullopt;
  return introduction;
}

bool is_readable(const FileDescriptor& file, std::chrono::milliseconds patience) {
  pollfd item{file.get(), POLLIN, 0};
  return poll(&item, 1, static_cast<int>(patience.count())) > 0;
}

bool is_closed(const FileDescriptor& socket) {
  pollfd item{socket.get(), POLLIN | POLLRDHUP, 0};
  return poll(&item, 1, 0) > 0;
}

}  // namespace fsdp::comm
