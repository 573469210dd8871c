#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/products/fp8_recipe.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

using kernels::Fp8Recipe;

// Chosen by name, as in "encoder.layers.3.up".
using Fp8Filter = std::function<bool(const std::string& name)>;

// From now on the torch::nn::Linear layers that `filter` accepts multiply fp8 numbers, forward and backward, wherever
// they are used in this process; weights, biases, gradients and activations keep their dtype, fp32 or bf16
// (Precision::bf16() as a rule), between products. Without a filter all linear layers but the first and the last, in
// the order in which they were registered: those are what fp8 hurts most. Before or after fully_shard(), with the same
// result; again with another recipe changes it, unless weights travel as fp8 numbers (Precision::gather). Local,
// without communication; each rank has to call it alike.
//
// The layers are told by their weights, inside at::linear, at::addmm and at::matmul, so that nothing of the model
// changes; other products with such a weight are ordinary ones. CPU only in this version. Under autocast it holds while
// gradients are recorded.
//
// Layers of Fp8Recipe::kDelayed want an Fp8DelayedScales, or are scaled by the numbers at hand.
//
// Returns the names of those layers. Throws Error(kUsage) where there is none, and where a weight's dimensions are not
// multiples of what the recipe's blocks need (tensorwise, delayed, rowwise: 16, blockwise: 128, mxfp8: 32), naming the
// layer.
std::vector<std::string> fp8(torch::nn::Module& module, Fp8Recipe recipe = Fp8Recipe::kRowwise,
                             const Fp8Filter& filter = nullptr);

// Throws Error(kUsage) that lists the legal names.
Fp8Recipe parse_fp8_recipe(const std::string& name);

}  // namespace fsdp
