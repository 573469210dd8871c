#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/connection.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/reserved_port.h"

namespace fsdp::testing {

// What became of a rank.
struct RankResult {
  std::string text;    // what its body returned, or what it threw
  double seconds = 0;  // in its body
  double goodbye = 0;  // seconds to close its connection
  bool ended = false;  // by itself
};

// Ranks that are processes, forked from the test, with a store in another process or in that of rank 0. All of them are
// killed in the end, so tests may stop and kill them as they like.
class RankProcesses {
 public:
  using Body = std::function<std::string(const World&)>;

  // `secret`: of the store, where no rank hosts it. Ranks have that of their options.
  explicit RankProcesses(comm::StoreHost store_host = comm::StoreHost::kLauncher, const comm::JobSecret& secret = {});
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts rank `rank` of `size`. "gloo", "shm", or "two-level": two hosts, as far as ranks know.
  void start(int rank, int size, comm::ConnectOptions options, const Body& body);
  // Starts a process in place of a rank, which connects by itself, if it does.
  void start(int rank, const std::function<RankResult()>& body);
  uint16_t store_port() const { return port_; }
  // Sends `signal` to a rank, or to the process that hosts the store.
  void send(int rank, int signal) const;
  void send_to_store(int signal) const;
  // Process number of a rank.
  pid_t process(int rank) const { return ranks_.at(rank); }
  // Waits for the rank to end, but no longer than `patience`.
  RankResult result(int rank, std::chrono::seconds patience = std::chrono::seconds(60));
  // A folder for what ranks leave behind.
  const io::TemporaryFolder& folder() const { return folder_; }

 private:
  io::TemporaryFolder folder_;
  comm::StoreHost store_host_;
  std::optional<ReservedPort> reserved_port_;  // where rank 0 hosts the store
  uint16_t port_ = 0;
  pid_t store_ = 0;
  std::map<int, pid_t> ranks_;
};

comm::ConnectOptions options_for(const std::string& transport, int rank, int size);

}  // namespace fsdp::testing
