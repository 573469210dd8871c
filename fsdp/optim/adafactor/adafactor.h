#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/flat_optimizer.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// What an update, whose root mean square is at most `clip`, is multiplied with.
enum class AdafactorRate {
  kRelative,  // min(lr, 1 / sqrt(step)) times the parameter's root mean square, or eps2 where that is less
  kAbsolute,  // lr: as large as AdamW's, whose learning rate, schedule and decay then fit
};

struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;        // a gradient's square counts step^beta2_decay in the mean of all
  std::optional<double> eps1 = {};  // least root of a mean square; unset: the distance of 1 to the next number
  double eps2 = 1e-3;
  double clip = 1;
  double weight_decay = 0;  // decoupled
  AdafactorRate rate = AdafactorRate::kRelative;
};

// Leaves for Adafactor, and those for AdamW beside it.
struct AdafactorGroups {
  std::vector<at::Tensor> whole;
  std::vector<DecayGroup> others;
};

// Parameters with 2 dims go to Adafactor, all others to AdamW, as do those whose name has one of the words `by_adamw`:
// embeddings and the head, which are too large for one rank. AdamW's with at least 2 dims get `weight_decay`.
AdafactorGroups adafactor_groups(const torch::nn::Module& module, double weight_decay,
                                 const std::vector<std::string>& by_adamw = {"embed", "head"});

// AdamW's second moment from its means over rows and over columns, and no first one: R + C numbers of state for a
// matrix of R x C. Of a parameter with more dims each matrix of the last two has its own; a vector keeps its second
// moment. Means and the size of an update are those of whole parameters, so each lies whole on one rank: units must be
// sharded with
//   ShardOptions::layout = {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced}
// Results have the same bits on any number of ranks for the same gradients. After: Shazeer and Stern 2018;
// torch.optim.Adafactor, whose semantics these are with AdafactorRate::kRelative.
class Adafactor : public FlatOptimizer {
 public:
  // Group 0. Throws Error(kUsage) for options out of range, and naming it for a parameter that is cut between ranks.
  Adafactor(std::vector<at::Tensor> parameters, AdafactorOptions options);
  // Groups 1, 2, ...: groups.others.
  Adafactor(AdafactorGroups groups, AdafactorOptions options, AdamWOptions adamw);

  AdafactorOptions& options();
  AdamWOptions& adamw_options(size_t group);  // from 1 on
};

}  // namespace fsdp
