#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/comm.h"

namespace fsdp::pipeline {

// What travels one way over the border between two stages: tensors of one size, in the order of the microbatches. The
// first tensor of a border says its dtype and sizes ahead; from then on they hold. For one thread.
class Border {
 public:
  // `peer`: of the group, on the other side. `what`, for errors: "activations of stage 2".
  Border(std::shared_ptr<comm::Comm> comm, int peer, std::string what, c10::Device device)
      : comm_(std::move(comm)), peer_(peer), what_(std::move(what)), device_(device) {}

  int peer() const { return peer_; }

  // Begins to send, and keeps the tensor until release() says that it was read. `reader`: the peer's turn that reads
  // it. Throws Error(kUsage) unless the tensor is like the first one.
  void send(const at::Tensor& tensor, int reader);
  // The peer has begun its turn `turn`, so all that its earlier turns read has arrived.
  void release(int turn);
  // All has arrived. Blocks.
  void release_all();

  // Begins to receive the next tensor, where its size is known. No-op if that was done.
  void expect();
  // The next tensor. Blocks; throws Error(kCommunication) as every call does.
  at::Tensor receive();

 private:
  struct Sent {
    int reader;
    at::Tensor tensor;
    comm::Pending pending;
  };
  struct Expected {
    at::Tensor tensor;
    comm::Pending pending;
  };

  comm::CallLabel label(const char* operation) const { return {operation, what_, ""}; }
  void agree_as_sender(const at::Tensor& tensor);
  void agree_as_receiver();

  std::shared_ptr<comm::Comm> comm_;
  int peer_;
  std::string what_;
  c10::Device device_;
  std::optional<at::ScalarType> dtype_;  // unset: nothing has travelled yet
  std::vector<int64_t> sizes_;
  std::deque<Sent> sent_;
  std::optional<Expected> expected_;
};

}  // namespace fsdp::pipeline
