#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "fsdp/base/file_descriptor.h"

namespace fsdp::comm {

// From where a socket that listens is reached.
enum class Reach { kThisHost, kAllHosts };

// Never blocks, and is closed in programs that this one starts. Empty where the system refuses: `error` is its number.
struct Socket {
  FileDescriptor descriptor;
  int error = 0;
};

// Listens on 127.0.0.1 alone, or on every address of the host. Port 0: one of the system's choice.
Socket listen_on(Reach reach, uint16_t port);
uint16_t port_of(const FileDescriptor& listener);

// Connects to `host`:`port`, once; addresses of the name are tried in turn, 3 s each at most. Looking up a name takes
// as long as the system lets it.
struct Attempted {
  FileDescriptor connection;  // empty: failure
  std::string failure;        // what the system said
};
Attempted try_to_connect(const std::string& host, uint16_t port, std::chrono::milliseconds patience);

// The same, again and again for `patience`, until something accepts.
Attempted connect_within(const std::string& host, uint16_t port, std::chrono::milliseconds patience);

// The address of this host on the route to `target`, as other hosts reach it; 127.0.0.1 if there is none. Nothing is
// sent. Host names often resolve to 127.0.1.1, which no other host reaches.
std::string address_towards(const std::string& target, uint16_t port);

// "10.0.0.7:4242" of the other side.
std::string peer_of(const FileDescriptor& connection);

// Sends all of `bytes` before `until`. False: it cannot be done.
bool send_all(const FileDescriptor& connection, std::string_view bytes, std::chrono::steady_clock::time_point until);
// Appends what has come to `bytes`, after waiting for something. False: the end, an error, or nothing came before
// `until`.
bool receive_some(const FileDescriptor& connection, std::string& bytes, std::chrono::steady_clock::time_point until);

}  // namespace fsdp::comm
