#include "fsdp/optim/muon.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/adamw_update.h"
#include "fsdp/optim/update_rule.h"

namespace fsdp {
namespace {

void check_muon_options(const MuonOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0, "[Muon] lr ", options.lr, ", weight decay ",
             options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(options.momentum >= 0 && options.momentum < 1, "[Muon] momentum: got ", options.momentum,
             ", expected a number from 0 to below 1.");
  FSDP_CHECK(options.iterations >= 1 && options.iterations < 100, "[Muon] iterations: got ", options.iterations,
             ", expected from 1 to 99; usual: 5.");
  FSDP_CHECK(options.eps > 0, "[Muon] eps: got ", options.eps, ", expected a number above 0.");
  FSDP_CHECK(options.dtype == at::kBFloat16 || options.dtype == at::kFloat || options.dtype == at::kDouble,
             "[Muon] dtype: got ", options.dtype, ", expected bf16, fp32 or fp64.");
}

double scale_of(MuonScale scale, int64_t rows, int64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return scale == MuonScale::kOriginal ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
}

void muon_update(const FlatRun& run, const MuonOptions& options, const GradientFactor& factor) {
  const at::Tensor weight = run.weight.view(run.sizes);
  const at::Tensor momentum = run.states[0].view(run.sizes);
  const at::Tensor gradient = factor.times(run.gradient.view(run.sizes));
  momentum.lerp_(gradient, 1 - options.momentum);
  const at::Tensor direction = options.nesterov ? gradient.lerp(momentum, options.momentum) : momentum;
  const at::Tensor update =
      orthogonalize(direction, quintics(options.by, options.iterations), options.eps, options.dtype);
  weight.mul_(1 - options.lr * options.weight_decay);
  weight.add_(update, -options.lr * scale_of(options.scale, weight.size(0), weight.size(1)));
  if (run.copy.defined()) run.copy.copy_(run.weight);
}

void muon_update_by_heads(const FlatRun& run, int64_t rows, const MuonOptions& options, const GradientFactor& factor) {
  for_each_piece(run, rows * run.sizes[1], [&](FlatRun head) {
    head.sizes = {rows, run.sizes[1]};
    muon_update(head, options, factor);
  });
}

LeafNeeds muon_needs() {
  LeafNeeds needs{{{"momentum_buffer"}}, RunOf::kTensor};
  needs.dims = 2;
  return needs;
}

class MuonRule : public UpdateRule {
 public:
  MuonRule(MuonGroups groups, const MuonOptions& options, const AdamWOptions& adamw) : muon(options) {
    check_muon_options(options);
    leaves_.push_back({std::move(groups.matrices), muon_needs()});
    for (AdamWGroup& group : with_decay<AdamWGroup>(std::move(groups.others), adamw)) {
      check_options(group.options);
      others.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), adamw_needs(adamw)});
    }
    for (MuonHeads& group : groups.heads) add_heads(std::move(group));
  }

  const char* name() const override { return "Muon"; }
  size_t num_groups() const override { return 1 + others.size(); }
  double& lr(size_t group) override { return group == 0 ? muon.lr : others.at(group - 1).lr; }
  void update(const FlatRun& run, const GradientFactor& factor) override {
    if (run.options == 0) return muon_update(run, muon, factor);
    if (run.options <= others.size()) return adamw_update(run, others[run.options - 1], factor);
    muon_update_by_heads(run, head_rows_[run.options - 1 - others.size()], muon, factor);
  }

  MuonOptions muon;
  std::vector<AdamWOptions> others;

 private:
  void add_heads(MuonHeads heads) {
    for (const at::Tensor& matrix : heads.matrices) {
      const std::vector<int64_t> sizes = logical_sizes(matrix);
      FSDP_CHECK(heads.rows > 0 && sizes.size() == 2 && sizes[0] % heads.rows == 0, "[Muon] heads: got sizes [",
                 c10::Join(", ", sizes), "] with heads of ", heads.rows, " rows, expected a matrix of whole heads.");
    }
    head_rows_.push_back(heads.rows);
    leaves_.push_back({std::move(heads.matrices), muon_needs()});
  }

  std::vector<int64_t> head_rows_;
};

bool is_one_of(const std::string& name, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return name == word + ".weight" || name.ends_with("." + word + ".weight");
  });
}

}  // namespace

MuonGroups muon_groups(const torch::nn::Module& module, double weight_decay, const std::vector<std::string>& by_adamw) {
  MuonGroups groups;
  groups.others = {{{}, weight_decay}, {{}, 0}};
  for (const auto& [name, leaf] : named_parameters(module)) {
    const size_t dims = logical_sizes(leaf).size();
    const bool is_named = std::any_of(by_adamw.begin(), by_adamw.end(), [&name = name](const auto& word) {
      return name.find(word) != std::string::npos;
    });
    if (dims == 2 && !is_named) {
      groups.matrices.push_back(leaf);
    } else {
      groups.others[dims >= 2 ? 0 : 1].parameters.push_back(leaf);
    }
  }
  return groups;
}

MuonGroups split_heads(MuonGroups groups, const torch::nn::Module& module, int64_t rows,
                       const std::vector<std::string>& words) {
  MuonHeads heads{{}, rows};
  for (const auto& [name, leaf] : named_parameters(module)) {
    if (!is_one_of(name, words)) continue;
    const auto found = std::find_if(groups.matrices.begin(), groups.matrices.end(),
                                    [&leaf = leaf](const at::Tensor& each) { return each.is_same(leaf); });
    if (found == groups.matrices.end()) continue;
    const int64_t all = logical_sizes(leaf)[0];
    FSDP_CHECK(rows > 0 && all % rows == 0, "[Muon] heads of ", rows, " rows: got '", name, "' with ", all,
               " rows, expected a multiple.");
    heads.matrices.push_back(leaf);
    groups.matrices.erase(found);
  }
  FSDP_CHECK(!heads.matrices.empty(), "[Muon] heads: got no matrix called ", c10::Join(", ", words),
             ", expected one. Name the projections of this model.");
  groups.heads.push_back(std::move(heads));
  return groups;
}

Muon::Muon(std::vector<at::Tensor> matrices, MuonOptions options)
    : Muon(MuonGroups{std::move(matrices), {}, {}}, options, {}) {}
Muon::Muon(MuonGroups groups, MuonOptions options, AdamWOptions adamw)
    : FlatOptimizer(std::make_unique<MuonRule>(std::move(groups), options, adamw)) {}

MuonOptions& Muon::options() { return static_cast<MuonRule&>(rule()).muon; }
AdamWOptions& Muon::adamw_options(size_t group) { return static_cast<MuonRule&>(rule()).others.at(group - 1); }

}  // namespace fsdp
