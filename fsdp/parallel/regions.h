#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fsdp/parallel/ranks.h"

namespace fsdp::parallel {

// How activations go from code that all ranks of an axis run alike to code that each runs on its part, and back:
// functions with gradients, also of gradients. COLLECTIVE over the axis in the direction that moves something, and so
// is their backward; errors and bytes as `Ranks` has them. In a world of one each returns `x`. After: Megatron-LM's f,
// g and their conjugates for sequence parallelism.

// To a part of a layer, of what all ranks have alike: x; gradients are added up.
at::Tensor enter_parts(const at::Tensor& x, const std::shared_ptr<Ranks>& ranks, const std::string& layer);
// Back: the sum of the parts; the gradient as it is.
at::Tensor leave_parts(const at::Tensor& x, const std::shared_ptr<Ranks>& ranks, const std::string& layer);
// The same where ranks hold parts of the tokens (dimension `dim`) between layers: a gather, whose gradient is scattered
// sums; scattered sums, whose gradient is a gather.
at::Tensor enter_parts_from_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks,
                                   const std::string& layer);
at::Tensor leave_parts_to_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks,
                                 const std::string& layer);
// As the two that enter, for layers that read one tensor after each other (projections to queries, keys and values):
// the second and later of this thread continue the first one's, so that `x` is gathered once, and its gradients are
// added up over the ranks once. Where the first one's result is gone (no gradients, nothing saved) they do it anew.
// tokens_dim: none, or where `x` has tokens of each rank's own.
at::Tensor enter_parts_together(const at::Tensor& x, std::optional<int64_t> tokens_dim,
                                const std::shared_ptr<Ranks>& ranks, const std::string& layer);
// From code that all ranks run alike to tokens of their own, and back: where sequence parallelism begins and ends.
at::Tensor own_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks, const std::string& layer);
at::Tensor all_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks, const std::string& layer);

}  // namespace fsdp::parallel
