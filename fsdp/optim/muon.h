#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/flat_optimizer.h"
#include "fsdp/optim/newton_schulz.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// What an update, whose singular values are about 1, is multiplied with besides the learning rate.
enum class MuonScale {
  kOriginal,       // sqrt(max(1, rows / cols))
  kMatchRmsAdamW,  // 0.2 sqrt(max(rows, cols)): as large as AdamW's, whose learning rate and decay then fit
};

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;  // decoupled
  MuonScale scale = MuonScale::kOriginal;
  OrthogonalizeBy by = OrthogonalizeBy::kNewtonSchulz;
  int iterations = 5;
  double eps = 1e-7;
  at::ScalarType dtype = at::kBFloat16;  // of the iterations; or fp32, fp64
};

// Matrices whose rows are those of several linear maps, `rows` of each: the heads of an attention's projection. Each is
// made orthogonal by itself, and scaled as a matrix of so many rows.
struct MuonHeads {
  std::vector<at::Tensor> matrices;
  int64_t rows;
};

// Leaves for Muon, and those for AdamW beside it.
struct MuonGroups {
  std::vector<at::Tensor> matrices;
  std::vector<DecayGroup> others;
  std::vector<MuonHeads> heads = {};
};

// Parameters with 2 dims go to Muon, all others to AdamW, as do those whose name has one of the words `by_adamw`:
// embeddings and the head, whose rows are not the inputs and outputs of a linear map between activations. AdamW's with
// at least 2 dims get `weight_decay`.
MuonGroups muon_groups(const torch::nn::Module& module, double weight_decay,
                       const std::vector<std::string>& by_adamw = {"embed", "head"});

// Moves the matrices of `groups` whose name in `module` ends with one of `words` and ".weight" to groups.heads. Throws
// Error(kUsage) naming one whose rows are no multiple of `rows`, and if there is none.
MuonGroups split_heads(MuonGroups groups, const torch::nn::Module& module, int64_t rows,
                       const std::vector<std::string>& words = {"q_proj", "k_proj", "v_proj"});

// Momentum whose update of a matrix is made orthogonal, for matrices; AdamW for the rest. Each matrix is updated by the
// one rank that holds it, and others see neither its gradient nor its momentum: units must be sharded with
//   ShardOptions::layout = {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced}
// where kBalanced makes the work even over the ranks. Where every rank holds all (kNoShard), or replicas do, each
// computes all it holds. 4 bytes of state a matrix element. After: Jordan et al. 2024; Liu et al. 2025
// (kMatchRmsAdamW); torch.optim.Muon, whose semantics these are.
class Muon : public FlatOptimizer {
 public:
  // Group 0: matrices, and heads. Throws Error(kUsage) for options out of range, and naming it for a parameter that is
  // no matrix or a matrix that is cut between ranks.
  Muon(std::vector<at::Tensor> matrices, MuonOptions options);
  // Groups 1, 2, ...: groups.others.
  Muon(MuonGroups groups, MuonOptions options, AdamWOptions adamw);

  MuonOptions& options();
  AdamWOptions& adamw_options(size_t group);  // from 1 on
};

}  // namespace fsdp
