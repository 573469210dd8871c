#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/mesh/mesh.h"
#include "fsdp/optim/clip_grad_norm.h"
#include "fsdp/pipeline/naming.h"
#include "fsdp/pipeline/order.h"
#include "fsdp/unit/unit.h"

namespace fsdp::pipeline {

class Ties;
enum class WithNotes;

// A part of the model: consecutive layers.
struct Stage {
  // x: what the stage before returned, a floating-point tensor; of the first stage, a microbatch's input as step() got
  // it. What else a stage needs of a microbatch (masks, positions) it looks up by its number.
  std::function<at::Tensor(const at::Tensor& x, int microbatch)> forward;
  // That the optimizer has: fsdp::parameters(module). Where several stages are parts of one module, one of them has
  // all.
  std::vector<at::Tensor> leaves;
  std::optional<Unit> unit = {};        // what fully_shard() returned for the module, if it is sharded
  std::vector<std::string> names = {};  // of the leaves, in the whole model; empty: they have none
};

// A module whose forward takes one tensor. `root`: what fully_shard() returned for it. `names`: what its parameters and
// buffers are called in the whole model, which checkpoints and state dicts need; none: they have no names there. Throws
// Error(kUsage) if two get one name. Local.
template <class Module>
Stage stage_of(const std::shared_ptr<Module>& module, std::optional<Unit> root = std::nullopt,
               const Naming& names = {}) {
  return {[module](const at::Tensor& x, int) { return module->forward(x); }, parameters(*module), std::move(root),
          name_tensors(*module, names)};
}

// What stages tell each other beside the one tensor, of each microbatch: numbers on the host, equally many each time on
// the way forward, and on the way back. Both are called once for each microbatch and stage.
struct Notes {
  // After the stage's forward, in the last stage before the loss. `given`: what the stage before returned here,
  // undefined for the first. That of the last stage goes back.
  std::function<at::Tensor(const at::Tensor& given, int stage, int microbatch)> after_forward;
  // Before the stage's backward, which may find that there is nothing to compute. `given`: what the stage after
  // returned here.
  std::function<at::Tensor(const at::Tensor& given, int stage, int microbatch)> before_backward;
};

// What the loss of a batch is, of those of its microbatches.
enum class LossesAre { kAveraged, kAdded };

// A model cut into stages over the mesh axis "pp". Stage s is on the rank with coordinate s % ranks; with an
// interleaved order a rank has several. The other axes are the stages' own: a stage is sharded over "shard", its layers
// may be parallel over "tp". Gradients are left in the leaves as a backward leaves them. Weights of ZeRO-1 and ZeRO-2
// are gathered once in a step, those of ZeRO-3 for each microbatch. A weight that two ranks' stages have, by its name
// in the whole model, is tied: each gets the sum of both gradients, so that what they start with alike stays alike. For
// one thread.
class Pipeline {
 public:
  // stages: this rank's, in the model's order. COLLECTIVE over "pp". Throws Error(kUsage): the mesh has no axis "pp", a
  // stage has no forward, the ranks have not equally many stages or another order, or hold other parts of a tied weight
  // (which then wants to be a unit of its own).
  Pipeline(const Mesh& mesh, std::vector<Stage> stages, Order order = Order::k1F1B);

  // A scalar of the last stage's output for a microbatch.
  using Loss = std::function<at::Tensor(const at::Tensor& output, int microbatch)>;
  // A forward and a backward of one batch, whose loss is the mean over the microbatches, or their sum. inputs: a tensor
  // for each microbatch; every rank gives equally many, and those of ranks without the first stage are not read (they
  // may be undefined). `loss` is called where the last stage is. Returns the batch's loss on every rank. COLLECTIVE
  // over "pp"; errors name the stage's tensor and the rank that did not come. Throws Error(kUsage): ranks differ in the
  // number of microbatches, or a stage's output in size between them.
  // `notes`: all ranks pass both functions, or none does.
  double step(const std::vector<at::Tensor>& inputs, const Loss& loss, LossesAre losses = LossesAre::kAveraged,
              const Notes& notes = {});
  // Forwards alone, without gradients, of any number of microbatches. Returns the last stage's outputs where that is,
  // nothing elsewhere. COLLECTIVE likewise.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  // As the functions of these names, over the leaves of all stages, tied ones once. COLLECTIVE over "pp" and over the
  // leaves' own axes.
  GradNorm grad_norm(double max_norm, double norm_type = 2) const;
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2) const;

  bool has_first_stage() const;
  bool has_last_stage() const;

 private:
  class Step;
  void agree(const std::string& text) const;
  Shape shape_for(const std::vector<at::Tensor>& inputs, WithNotes notes) const;

  std::shared_ptr<comm::Comm> comm_;
  std::vector<Stage> stages_;
  Order order_;
  std::shared_ptr<Ties> ties_;
};

}  // namespace fsdp::pipeline
