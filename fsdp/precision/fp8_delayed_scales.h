#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace fsdp::kernels {
class Fp8History;
}  // namespace fsdp::kernels

namespace fsdp {

// The scales of layers with Fp8Recipe::kDelayed: those of activations and gradients follow from the largest numbers of
// the last 16 steps, of all ranks, and not from the numbers at hand; what then is too large is cut off at the format's
// largest number. In the first step, which has none before it, they follow from the numbers at hand. Between two steps:
//   optimizer.step();
//   scales.update();
// After: Transformer Engine's DelayedScaling, with its largest amax of a window.
class Fp8DelayedScales {
 public:
  // Of the layers of `module` that fsdp::fp8() gave that recipe; sharded or not.
  Fp8DelayedScales(const torch::nn::Module& module, World world);
  // Where ranks have different layers, stages of a pipeline: `names` are those of all parameters of the whole model, in
  // its order, and `module` calls its own as they are called there. The scales of all layers are on every rank.
  // COLLECTIVE over the world.
  Fp8DelayedScales(const torch::nn::Module& module, World world, const std::vector<std::string>& names);

  bool empty() const { return histories_.empty(); }
  // Local. What was computed since the last update() does not count: evaluations.
  void begin_step();
  // The next step's scales: one small collective for all layers. COLLECTIVE over the world.
  void update();
  // For checkpoints; equal on all ranks.
  std::string text() const;
  // Throws Error(kCheckpoint) for the text of other layers. "": as at the start.
  void load(const std::string& text);

 private:
  std::vector<std::shared_ptr<kernels::Fp8History>> histories_;  // in the model's order
  World world_;
};

}  // namespace fsdp
