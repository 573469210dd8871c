#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace fsdp::comm {
class Comm;
}  // namespace fsdp::comm

namespace fsdp::parallel {

// What this rank received over an axis.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// A tensor on its way to the next rank of a ring, and the one before's on its way here. Destroyed early, it gives up.
class Passing {
 public:
  struct Calls;
  explicit Passing(std::unique_ptr<Calls> calls);
  Passing(Passing&&) noexcept;
  Passing& operator=(Passing&&) noexcept;
  ~Passing();
  // What came. Blocks until both are done. Once.
  at::Tensor wait();

 private:
  std::unique_ptr<Calls> calls_;
};

// The ranks along one axis of a mesh, as parallel layers use them. Tensors have any shape and floating dtype and are
// the same size on every rank; results are new. Every method that takes tensors is COLLECTIVE, blocks, and throws
// Error(kCommunication) that names `layer` and the rank that did not come. Bytes: of a tensor of B bytes on each of N
// ranks a rank receives what the method says (sums are padded to a multiple of N elements).
class Ranks {
 public:
  // COLLECTIVE over the axis at first. Layers of one mesh share it; it lives as long as one of them does. An axis that
  // the mesh does not have is this rank alone.
  static std::shared_ptr<Ranks> along(const Mesh& mesh, const std::string& axis);
  Ranks(std::shared_ptr<comm::Comm> comm, std::string axis);

  int rank() const;
  int size() const;
  const std::string& axis() const { return axis_; }
  const std::shared_ptr<comm::Comm>& comm() const { return comm_; }

  // Sum in rank order, with equal bits on every rank. 2 (N-1)/N B.
  at::Tensor sum(const at::Tensor& x, const std::string& layer);
  // The ranks' tensors side by side along `dim`. (N-1) B.
  at::Tensor gather(const at::Tensor& x, int64_t dim, const std::string& layer);
  // This rank's part of the sum, along `dim`, which N must divide: Error(kUsage) with the nearest legal sizes.
  // (N-1)/N B.
  at::Tensor scatter_sum(const at::Tensor& x, int64_t dim, const std::string& layer);
  // Rows of `x` for other ranks, those for rank 0 first; counts[from][to], as every rank knows them. Returns the rows
  // for this one, those from rank 0 first. The rows from other ranks.
  at::Tensor exchange(const at::Tensor& x, const std::vector<std::vector<int64_t>>& counts, const std::string& layer);
  // Begins to send `x`, which must not change until then, to the next rank, the last one's to the first, and to receive
  // what the one before sends. Of two ranks at least. B.
  Passing pass_on(const at::Tensor& x, const std::string& layer);
  // Local. This rank's part of `x` along `dim`, likewise. A view.
  at::Tensor own_part(const at::Tensor& x, int64_t dim, const std::string& layer) const;

  // Since the start or reset_traffic(). Local.
  Traffic traffic() const { return {calls_.load(), bytes_.load()}; }
  void reset_traffic();

 private:
  void count(int64_t bytes);

  std::shared_ptr<comm::Comm> comm_;
  std::string axis_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> bytes_{0};
};

// Throws Error(kUsage) unless `parts` divides `count`; the text says `what` it is of `layer`, and the nearest numbers.
void check_divides(int64_t count, int parts, const std::string& what, const std::string& layer);

}  // namespace fsdp::parallel
