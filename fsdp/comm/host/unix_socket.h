#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/base/file_descriptor.h"
#include "fsdp/comm/secret/job_secret.h"

namespace fsdp::comm {

// Sockets of one host whose names live in no folder and end with them. Functions return an empty FileDescriptor, or
// nothing, where the system or the other side refuses.

// A name that nobody guesses.
std::string random_name();

FileDescriptor listen_at(const std::string& name, int backlog);
struct Call {
  FileDescriptor connection;
  bool is_queue_full = false;  // why there is none: others wait there, and may be gone soon
};
Call connect_to(const std::string& name);
// Waits at most `patience` for somebody who runs under this process's user.
FileDescriptor accept_at(const FileDescriptor& listener, std::chrono::milliseconds patience);

// What ranks tell each other first, together with the file of their arena.
struct Greeting {
  int64_t rank = 0;
  int64_t arena_bytes = 0;
  Proof proof{};  // of the job's secret, and of having read the same store
};
struct Introduction {
  Greeting greeting;
  FileDescriptor file;
};
bool send_greeting(const FileDescriptor& socket, const Greeting& greeting, const FileDescriptor& file);
// Nothing too where the file is smaller than it was said to be, or can become smaller.
std::optional<Introduction> receive_greeting(const FileDescriptor& socket, std::chrono::milliseconds patience);

// Whether something, or the end, comes within `patience`.
bool is_readable(const FileDescriptor& file, std::chrono::milliseconds patience);

// Whether the other side has closed its end, as the end of its process does. For sockets on which nothing is sent.
bool is_closed(const FileDescriptor& socket);

}  // namespace fsdp::comm
