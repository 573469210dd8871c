#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/comm/comm.h"

namespace fsdp {

// How the ranks of a Context agree on the scales of all weights that travel as fp8 numbers: by one small collective for
// all of them, when the first is to be gathered after an optimizer step. One thread at a time.
class Fp8Agreement {
 public:
  // A group of weights.
  struct Member {
    const void* id = nullptr;
    std::vector<std::shared_ptr<comm::Comm>> comms;  // over whose ranks its main weight is cut
    std::function<at::Tensor()> wanted;              // codes that this rank's part needs, kByte
    std::function<void(at::Tensor)> agree;           // takes those of all ranks
  };

  void add(Member member) { members_.push_back(std::move(member)); }
  void forget(const void* id);
  // COLLECTIVE over the comms of that member: all members that have the same take part. Throws Error(kCommunication).
  void run(const void* id);
  int64_t runs() const { return runs_; }

 private:
  std::vector<Member> members_;  // in the order in which all ranks made them
  int64_t runs_ = 0;
};

}  // namespace fsdp
