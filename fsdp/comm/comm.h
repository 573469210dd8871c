#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp/comm/liveness/call_log.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

class Connection;
class Comm;

// A call in flight. Movable; an empty one is done.
class Pending {
 public:
  Pending() = default;
  Pending(std::shared_ptr<Comm> comm, int64_t number, CallLabel label, std::unique_ptr<Transfer> transfer);

  bool in_flight() const { return transfer_ != nullptr; }
  // Blocks until the result is complete. Throws Error(kCommunication) at the deadline or when a rank was lost; the text
  // names the call, what caused it and the ranks that are missing.
  void wait();
  // The transfer itself, to give it up from another thread.
  const std::shared_ptr<Transfer>& transfer() const { return transfer_; }

 private:
  std::shared_ptr<Comm> comm_;
  int64_t number_ = 0;
  CallLabel label_;
  std::shared_ptr<Transfer> transfer_;
};

// What a Comm is for. On the host it is all the same; on a device each has a communicator of its own, so that a gather
// does not wait for a reduction that was enqueued before it.
enum class Purpose { kGather, kReduce };

// The ranks of one group and the only door to them: every collective of the library is a method of this class. Each
// call has a name, a number and a deadline, and is kept in the connection's log. Calls are COLLECTIVE, calls of one
// operation on one part of a unit in the same order on every rank of the group; tensors are contiguous and 1-D.
// Thread-safe.
// Tensors of the host may be passed, and those of one device. On a device a call is work of the current stream: nothing
// blocks the host, calls of a rank come in the same order on all, and the log has a call as done once it is enqueued;
// then the transport keeps the deadline.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(std::weak_ptr<Connection> connection, std::vector<int> ranks, int rank, Purpose purpose,
       std::shared_ptr<Transport> transport);

  int rank() const { return rank_; }  // within the group
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  // global
  Purpose purpose() const { return purpose_; }
  std::string transport_name() const { return host_->name(); }

  // Connects the ranks for tensors of `device`, now rather than at the first of them. COLLECTIVE; no-op for the CPU.
  // Throws Error(kUsage) where tensors of another device were passed before.
  void open(c10::Device device);

  // output [size * n], shard [n]. Moves (size-1) * n elements to each rank.
  Pending all_gather(const at::Tensor& output, const at::Tensor& shard, CallLabel label);
  // input [size * n], output [n]; staging as Transport::reduce_scatter. SUM, as the tree of kernels::sum_chunks().
  Pending reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor& staging,
                         Accumulate accumulate, CallLabel label);
  int64_t staging_numel(int64_t shard_numel, c10::Device device = c10::kCPU);
  // For numbers, not bulk data: any numel; gathers all values and adds them in rank order. Blocking.
  void all_reduce_small(const at::Tensor& values, CallLabel label);
  // Blocking. Rank `root`'s tensor on every rank.
  void broadcast(const at::Tensor& tensor, int root, CallLabel label);
  void barrier(CallLabel label);
  // A few numbers from each rank, as many from all; by rank. Blocking.
  std::vector<std::vector<int64_t>> gather_numbers(const std::vector<int64_t>& mine, CallLabel label);
  // A text of any length from each rank, by rank; lengths go first, under the label with " (lengths)". Blocking.
  std::vector<std::string> gather_texts(const std::string& mine, const CallLabel& label);

  // input [size * n]: slice r goes to rank r; output [size * n]: slice r is from rank r. They do not overlap. Each rank
  // receives (size-1) * n elements.
  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, CallLabel label);
  // The same in pieces of counts[from][to] elements, which every rank must know: by itself, or from exchange_counts().
  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts, CallLabel label);
  // `to_others`: how many elements this rank sends to each. Returns what all ranks said. Blocking.
  ExchangeCounts exchange_counts(const std::vector<int64_t>& to_others, CallLabel label);
  // From one rank of the group to another; only these two call. Messages of one name from one rank to another arrive in
  // order. The first one between two ranks connects them, so it waits for the other. From one thread at a time.
  Pending send(const at::Tensor& tensor, int to, CallLabel label);
  Pending receive(const at::Tensor& tensor, int from, CallLabel label);
  // Waits for something else that the ranks of the group do; `wait` throws TransferFailure at the deadline and soon
  // after `aborted` has become true. Blocking.
  using WaitFunction = std::function<void(std::chrono::milliseconds deadline, const std::atomic<bool>& aborted)>;
  void await(CallLabel label, const WaitFunction& wait);

 private:
  friend class Pending;
  friend class Connection;
  Transport& transport_for(c10::Device device);
  struct Issued {
    int64_t number;
    uint32_t tag;
  };
  Issued issue(const CallLabel& label, int64_t bytes);
  Pending start(CallLabel label, int64_t bytes, const std::function<std::unique_ptr<Transfer>(uint32_t tag)>& begin);
  Pending message(const at::Tensor& tensor, int from, int to, CallLabel label);
  void set_state(int64_t number, CallState state);
  void wait(Transfer& transfer) const;
  [[noreturn]] void fail(int64_t number, const CallLabel& label, const TransferFailure& failure);

  std::weak_ptr<Connection> connection_;
  std::vector<int> ranks_;
  int rank_;
  Purpose purpose_;
  std::shared_ptr<Transport> host_;
  std::shared_ptr<Transport> on_device_;  // null until open()
  std::optional<c10::Device> device_;
  std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> sequence_;  // calls so far, by operation, unit and part
};

}  // namespace fsdp::comm
