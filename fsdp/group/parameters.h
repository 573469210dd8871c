#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/strategy/strategy.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace fsdp {

// The optimizer's view of a sharded model: one 1-D leaf per distinct parameter, in the module's order (a tied weight
// once). Its data is this rank's slice of the main weight, possibly empty; its .grad the same slice of the main grad.
// Parameters that were not sharded are returned as they are. Local.
std::vector<at::Tensor> parameters(const torch::nn::Module& module);
std::vector<at::Tensor> parameters(const torch::jit::Module& module);
std::vector<std::pair<std::string, at::Tensor>> named_parameters(const torch::nn::Module& module);
std::vector<std::pair<std::string, at::Tensor>> named_parameters(const torch::jit::Module& module);

// Shape of the whole parameter that `leaf` is a slice of; leaf.sizes() for a tensor that is no leaf of ours. Local.
std::vector<int64_t> logical_sizes(const at::Tensor& leaf);

// The slice itself: elements [begin, end) of the flattened parameter. Whole tensor for one that is no leaf of ours.
// Local.
struct LocalRange {
  int64_t begin = 0;
  int64_t end = 0;
};
LocalRange local_range(const at::Tensor& leaf);

// How a parameter was cut before it was sharded (tensor and expert parallelism): this rank has part `index` of `parts`
// equal ones, side by side along `dim`.
struct ParameterCut {
  int64_t dim = 0;
  int index = 0;
  int parts = 1;
  std::vector<int64_t> sizes;  // of the whole

  // Elements of the part that lie side by side in the whole.
  int64_t run() const;
  // How often they do: 1 where the parts are one behind the other.
  int64_t num_runs() const;
};

// Of a parameter that was cut, sharded or not, or of its leaf; nothing for any other tensor. For those who read or
// write parameters by themselves: logical_sizes() and local_range() are those of the part. Local.
std::optional<ParameterCut> cut_of(const at::Tensor& parameter_or_leaf);

// What a sharded parameter is, as of now.
struct ParameterPlace {
  std::string unit;                               // dotted name of its module within the root, "root" for that
  std::string name;                               // within the root
  Placement main_weight = Placement::kReplicate;  // kReplicate: every rank has, and updates, all of it
  LocalRange range;                               // the slice that this rank updates
  int64_t offset = 0;                             // of its first element in the unit's gathered buffer, in elements
  std::optional<ParameterCut> cut;                // nothing: ranks along "tp" have it alike
};

// Of a parameter of a sharded module, or of its leaf; nothing for any other tensor. Local.
std::optional<ParameterPlace> place_of(const at::Tensor& parameter_or_leaf);

// Leaves that want the same weight decay.
struct DecayGroup {
  std::vector<at::Tensor> parameters;
  double weight_decay = 0;
};

// Two groups: parameters whose logical shape has at least 2 dims get `weight_decay`, the others none. (Leaves are all
// 1-D, so the usual test on leaf.dim() would decay nothing.) Local.
std::vector<DecayGroup> decay_groups(const torch::nn::Module& module, double weight_decay);

// Empties the .grad of every leaf and model parameter. Local.
void zero_grad(torch::nn::Module& module);
void zero_grad(torch::jit::Module& module);

}  // namespace fsdp
