#pragma once

#include <cstdint>
#include <vector>

#include "plan/model.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Bytes of one microbatch on one rank that are neither weights nor gradients. Blocks: models::kept_bytes_per_token(),
// exact; what operators hold only while they run is an estimate from the largest of them. Nothing of a model that is no
// decoder.
struct Activations {
  std::vector<int64_t> kept;     // block by block of the whole model, from its forward to its backward
  std::vector<int64_t> working;  // beside that, in its backward: what is computed again, and gradients of activations
  // Where the gradients of weights come later than those of inputs: what of `kept` that still needs, and gradients.
  std::vector<int64_t> kept_for_weights;
  int64_t outer_kept = 0;    // last norm, tables of angles: from the end of the forward to the start of the backward
  int64_t border_kept = 0;   // likewise, of a stage that hands on what it computed
  int64_t loss_kept = 0;     // logits, or gradients in their place, between the loss's forward and backward
  int64_t loss_working = 0;  // beside that, at most
  int64_t loss_kept_for_weights = 0;  // what of it the head's weights need, as above
  // Of a weight that embedding and head share: autograd keeps the head's from there to the embedding's, and adds them.
  int64_t tied_gradient = 0;
};

// With experts: as if every expert got as many tokens.
Activations plan_activations(const PlannedModel& model, const Setup& setup);

}  // namespace fsdp::plan
