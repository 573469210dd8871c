#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::comm {

// Thrown by Transfer::wait(): which peer of the group the failure concerns (-1: not known), and the transport's words.
class TransferFailure : public std::runtime_error {
 public:
  enum class Kind { kPeerClosed, kDeadline, kOther };
  TransferFailure(Kind kind, int peer, const std::string& what) : std::runtime_error(what), kind(kind), peer(peer) {}
  Kind kind;
  int peer;
};

// Data on its way. Destroying one that was not waited for is allowed; the buffers it named may then hold anything.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns when the result is complete and every buffer may be reused. For tensors of a device: when that holds for
  // what the current stream, which is the one the call was made on, is given from now on. Call once.
  virtual void wait() = 0;
  // Makes a wait() that runs on another thread, or comes later, throw soon. May be called at any time.
  virtual void abort() noexcept {}
};

// How the sum of a reduction meets what its output already holds.
enum class Accumulate { kOverwrite, kAdd };

// What the ranks of a group send each other: [from][to], elements. The same on every rank.
using ExchangeCounts = std::vector<std::vector<int64_t>>;

// Moves bytes between the ranks of one group. Calls return at once. Every rank issues the same calls with the same tag;
// calls with different tags do not disturb each other, and a call never takes data sent under another tag. Transports
// of devices enqueue their work on the current stream and pay no heed to tags: ranks must issue calls in the same
// order. All tensors are contiguous, 1-D, of one dtype, and on one device.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;

  // output [size * n], shard [n]: output slice r becomes rank r's shard. `shard` may be this rank's slice of output.
  virtual std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) = 0;

  // input [size * n], output [n]: the sum over ranks of slice `rank`, as the tree of kernels::sum_chunks().
  // staging: at least staging_numel(n) elements of the input's dtype, untouched by others until wait() returned.
  virtual std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                                   const at::Tensor& staging, Accumulate accumulate, uint32_t tag) = 0;
  virtual int64_t staging_numel(int64_t shard_numel) const = 0;

  // Rank `root`'s tensor goes to all.
  virtual std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) = 0;

  // input: the pieces for rank 0, 1, ..; output: those from rank 0, 1, ..; of counts[from][to] elements, which may be
  // 0. The two do not overlap.
  virtual std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                               const ExchangeCounts& counts, uint32_t tag) = 0;

  // Transports of devices; on the host every transfer is given up by itself.
  // Makes what was enqueued end soon, with whatever result, and later calls throw. Any thread, any time.
  virtual void abort() noexcept {}
  // Leaves the group in order. Nothing is called afterwards. COLLECTIVE, except after abort().
  virtual void shutdown() noexcept {}
};

// A world of one: copies where input and output differ, otherwise nothing.
std::unique_ptr<Transport> make_null_transport();

}  // namespace fsdp::comm
