#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/buffer/dbuffer.h"
#include "fsdp/comm/comm.h"
#include "fsdp/group/phase.h"
#include "fsdp/strategy/strategy.h"

namespace fsdp {

// Where the gradients of a group go.
struct GradientSpec {
  std::shared_ptr<const layout::FlatLayout> layout;
  Placement placement = Placement::kShard;  // of the main grad: that of the main weight
  at::TensorOptions main_options;           // likewise its dtype and device
  at::ScalarType reduce_dtype = at::kFloat;
  StrategyTraits traits;
  std::shared_ptr<comm::Comm> comm;
  std::shared_ptr<SlabAllocator> slabs;
  std::vector<at::Tensor> leaves;  // get .grad
};

// The gradient half of a parameter group: what arrived in this backward, the reduce buffer it is collected in (all of
// it, on this rank, in the reduce dtype), and the main grad that the reduction adds to. Local unless marked COLLECTIVE.
// Driven by a Context, one thread at a time.
class GradientBuffers {
 public:
  explicit GradientBuffers(GradientSpec spec);

  const DBuffer& main_grad() const { return main_grad_; }
  GradPhase phase() const { return phase_.value(); }
  int64_t reduce_buffer_bytes() const { return reduce_buffer_.bytes(); }

  // ---- what the forward read
  void note_use(size_t i) { used_[i] = true; }
  bool used() const;
  void forget_use();

  // ---- what the backward brings
  void begin_backward();
  // Moves `gradient` of parameter i, times `scale`, into the reduce buffer; adds to one that is there.
  void add(size_t i, const at::Tensor& gradient, double scale);
  // Every parameter that the forward read has its gradient.
  bool complete() const;

  // ---- reduction
  // COLLECTIVE. Sum over the ranks, into the main grad: overwrites an empty one, adds to others. Returns the bytes that
  // this rank will receive. `unit` names it in messages.
  int64_t start_reduce(const std::string& unit);
  void finish_reduce(const std::string& unit);
  // Which parameters had a gradient since the last publish(), one byte each.
  std::vector<uint8_t>& arrived() { return arrived_; }
  // Gives the leaves of parameters that arrived their .grad.
  void publish();
  // Throws away what was collected.
  void drop();

 private:
  void begin_collecting();
  void fill_missing();
  comm::Accumulate prepare_main_grad();
  void release_reduce_memory();

  std::shared_ptr<const layout::FlatLayout> layout_;
  StrategyTraits traits_;
  std::shared_ptr<comm::Comm> comm_;
  std::shared_ptr<SlabAllocator> slabs_;
  std::vector<at::Tensor> leaves_;
  Placement main_placement_;
  at::TensorOptions main_options_;

  DBuffer main_grad_;  // made by the first reduction
  std::vector<at::Tensor> grad_slices_;
  DBuffer reduce_buffer_;
  PhaseOf<GradPhase> phase_{GradPhase::kEmpty};
  comm::Pending reduce_;
  comm::Accumulate accumulate_ = comm::Accumulate::kOverwrite;  // of the reduce in flight
  c10::DataPtr staging_;                                        // likewise
  int64_t staging_bytes_ = 0;
  bool reduced_since_publish_ = false;  // the main grad holds sums that the leaves do not show yet
  std::vector<bool> used_;              // read in a forward since the last backward
  std::vector<bool> placed_;            // has a gradient in the reduce buffer
  std::vector<bool> this_pass_;         // got a gradient in the running backward
  std::vector<uint8_t> arrived_;
};

}  // namespace fsdp
