#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/rendezvous/bounded_store.h"

namespace fsdp::comm {

// What a rank says of itself at the first meeting.
struct Member {
  std::string host;  // name
  int64_t process = 0;
  int world_size = 1;
  std::string build;     // build_id()
  std::string settings;  // whatever a program wants to be equal everywhere

  // This process.
  static Member self(int world_size);
};

// Who the ranks of a job are.
class Roster {
 public:
  Roster() = default;
  explicit Roster(std::vector<Member> members) : members_(std::move(members)) {}

  // Everyone writes its name before anyone builds groups, so that a missing rank is named instead of waited for. Rank 0
  // reads all names and writes down what comes of them, the others read that: few words each, whatever the world size.
  // Uses keys of `store` that are not to be used twice. COLLECTIVE. Throws, on every rank with the same words,
  //   Error(kCommunication) that names the ranks that are not there by the deadline, or if the store does not answer
  //   Error(kUsage) that names the odd rank: one that two processes claim to be, one that was told of another world
  //   size, one that runs another build or has other settings than most
  static Roster meet(BoundedStore& store, int rank, const Member& self, std::chrono::milliseconds deadline);

  // "rank 3 (host 'node7', process 4242)", as far as known.
  std::string name(int rank) const;
  // "host 'node7', process 4242".
  std::string place(int rank) const;

 private:
  std::vector<Member> members_;
};

}  // namespace fsdp::comm
