#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fsdp/mesh/mesh.h"
#include "fsdp/parallel/tokens.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp::parallel {

enum class Style {
  kColumn,  // a Linear, cut in outputs: what a later row layer, or a cut loss, takes
  kRow,     // a Linear, cut in inputs: takes what column layers make
  kTokens,  // any module, of Tokens::kOwn: it sees a part of the tokens (a norm), so its gradients are added up over
            // "tp"
};

// Names of modules, where '*' stands for any text, '?' for one character and [0-3] for one of several, and what becomes
// of them; the first that fits counts.
using Plan = std::vector<std::pair<std::string, Style>>;

// Cuts layers of type parallel::Linear (a torch::nn::Linear by another name) over the mesh axis "tp", in place. Between
// a column layer and the next row layer tensors have 1/N of their features: view attention heads with -1 for their
// number. What is not named stays whole and alike on all ranks. Weights are the model's own, so they start as in the
// model that was not cut: build it alike on every rank.
// Call it before fully_shard(), with one mesh for both. Local, except that the axis connects at first. Returns the
// names of the modules that were cut, in order. Throws Error(kUsage), and nothing was cut then: a pattern that fits
// nothing, a module of another type, sizes that N does not divide (with their neighbours), a weight that another module
// has too, that is deferred, sharded or cut already.
std::vector<std::string> parallelize(torch::nn::Module& module, const Plan& plan, const Mesh& mesh,
                                     Tokens tokens = Tokens::kAll);

}  // namespace fsdp::parallel
