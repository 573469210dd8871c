#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace fsdp {

class Ema;
class FlatOptimizer;
class GradScaler;

namespace checkpoint {

// Elements [begin, end) of a flattened logical tensor, as this rank holds them.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor data;  // 1-D, contiguous, end - begin elements
};

// Takes what a Stateful wants to have saved. Names are the Stateful's own.
class StateSink {
 public:
  virtual ~StateSink() = default;
  // This rank's part of a tensor that all ranks together have, once or several times over. Held until the snapshot.
  virtual void slice(TensorSlice slice) = 0;
  // A tensor that every rank has for itself. Saved once where all ranks have the same, else once for each.
  virtual void replica(const std::string& name, const at::Tensor& tensor) = 0;
  // A small text: rank 0's is saved.
  virtual void value(const std::string& key, const std::string& text) = 0;
};

// Gives back what was saved, at any number of ranks. Tensors are read after load() returned, in place and converted to
// the dtype of what they are read into, and only if everything that was asked for exists with the right shape.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual bool has(const std::string& tensor) const = 0;
  virtual void slice(TensorSlice slice) = 0;
  // Of another rank if more ranks load than have saved. True if all ranks had the same. `tensor` has the right shape.
  virtual bool replica(const std::string& name, const at::Tensor& tensor) = 0;
  virtual std::optional<std::string> value(const std::string& key) const = 0;
  // The checkpoint may have this tensor, and nobody here wants it.
  virtual void pass_over(const std::string& tensor) = 0;
  // Something else does not fit: told together with all that is missing or has another shape.
  virtual void refuse(const std::string& difference) = 0;
  // How many ranks saved.
  virtual int saved_world_size() const = 0;
};

// Something with state. All calls come on every rank, with the same names in the same order; the state of
// a stage of a pipeline, on the ranks of that stage.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual void save(StateSink& sink) = 0;
  // Asks for what it wants.
  virtual void load(StateSource& source) = 0;
  // Everything that anybody asked for exists; the tensors are written next.
  virtual void before_read() {}
  // The tensors have their values.
  virtual void loaded() {}
};

// A sharded model.
struct ModelRef {
  ModelRef() = default;
  ModelRef(torch::nn::Module& module) : module(&module) {}   // NOLINT(google-explicit-constructor)
  ModelRef(torch::jit::Module& script) : script(&script) {}  // NOLINT(google-explicit-constructor)
  torch::nn::Module* module = nullptr;
  torch::jit::Module* script = nullptr;
};

// An optimizer of its leaves: one of this library (AdamW, SGD, Muon, ...) or of LibTorch. Of LibTorch's: Adam, AdamW,
// SGD, RMSprop and Adagrad; LBFGS has a state that cannot be cut, and an optimizer of your own is a Stateful.
struct OptimizerRef {
  OptimizerRef() = default;
  OptimizerRef(FlatOptimizer& flat) : flat(&flat) {}               // NOLINT(google-explicit-constructor)
  OptimizerRef(torch::optim::Optimizer& torch) : torch(&torch) {}  // NOLINT(google-explicit-constructor)
  FlatOptimizer* flat = nullptr;
  torch::optim::Optimizer* torch = nullptr;
};

// What a checkpoint holds: weights, buffers, the optimizer's tensors, steps and learning rates, the loss scale, the
// generators of random numbers, and whatever else registers itself under a name.
struct State {
  ModelRef model;
  OptimizerRef optimizer = {};
  std::map<std::string, OptimizerRef> more_optimizers = {};  // of the same model, by name
  std::map<std::string, Stateful*> others = {};              // by name; not "model", "optimizer", "ema", "scaler" or
                                                             // "random"
  GradScaler* scaler = nullptr;  // fp16's loss scale; a checkpoint without one leaves it as it is
  // Which of the model's tensors are in the checkpoint, by name; empty: all. The others, which must not train, are the
  // program's to bring back: the base of an adapter. A load leaves them alone, whether the checkpoint has them or not.
  std::function<bool(const std::string& name)> keeps = {};
  Ema* ema = nullptr;  // averages of the weights; after a checkpoint without them they begin anew
};

}  // namespace checkpoint
}  // namespace fsdp
