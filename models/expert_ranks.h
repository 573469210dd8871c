// What a decoder with experts asks of other ranks.
// Shape suffixes: N tokens of this rank, R rows for this rank's experts, E hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/operators/expert_router.h"

namespace fsdp::models {

// What experts make of rows [R, E], one expert's after the other's, so many of each: [R, E].
using ComputeExperts = std::function<at::Tensor(const at::Tensor& x_RE, const std::vector<int64_t>& rows)>;

// Where experts are spread over ranks (expert parallelism), tokens travel to them; and wherever ranks have tokens of
// their own, how busy experts are is known to all of them together only. All are COLLECTIVE.
class ExpertRanks {
 public:
  ExpertRanks() = default;
  virtual ~ExpertRanks() = default;
  ExpertRanks(const ExpertRanks&) = delete;
  ExpertRanks& operator=(const ExpertRanks&) = delete;

  // x [N, E] -> [N, E]: for each token the sum of what its experts make of it, times their weights. Calls `compute`
  // once, for the experts of this rank; `layer` is told in errors. Has a gradient, whose way is COLLECTIVE too.
  virtual at::Tensor mix(const at::Tensor& x_NE, const kernels::Routing& routing, const ComputeExperts& compute,
                         const std::string& layer) = 0;
  // Over all ranks that have tokens of their own; `numbers` are few, on the host.
  virtual at::Tensor add_up(const at::Tensor& numbers) = 0;
  // Likewise, over those of them that tell of one loss: they have parts of the tokens between layers (AcrossRanks).
  virtual at::Tensor add_up_alike(const at::Tensor& numbers) = 0;
};

// The same on one rank, which has all experts.
at::Tensor mix_experts(const at::Tensor& x_NE, const kernels::Routing& routing, const ComputeExperts& compute);

}  // namespace fsdp::models
