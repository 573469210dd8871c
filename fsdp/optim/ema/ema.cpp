#include "fsdp/optim/ema/ema.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/group/leaves.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/runs/disk_pass.h"

namespace fsdp {
namespace {

std::vector<LeafGroup> averaged(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    FSDP_CHECK(leaf.defined(), "[Ema] got an undefined tensor.");
    const at::ScalarType dtype = leaf.scalar_type();
    FSDP_CHECK(!leaf.requires_grad() || dtype == at::kFloat || dtype == at::kDouble, "[Ema] got a parameter of dtype ",
               dtype, ", expected fp32 or fp64 main weights. Shard fp32 parameters with Precision::bf16().");
  }
  return {{leaves, {{{"average"}}}}};
}

// The average lies where a run has its weight, and the weight where it has its gradient.
void move_towards(const FlatRun& run, double share) {
  for_each_piece(run, run.weight.is_cpu() ? kHostPiece : std::max<int64_t>(1, run.weight.numel()),
                 [&](const FlatRun& piece) {
                   share == 1 ? piece.weight.copy_(piece.gradient) : piece.weight.lerp_(piece.gradient, share);
                 });
}

// Without memory for all of it.
void exchange_contents(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t begin = 0; begin < a.numel(); begin += kDiskPiece) {
    const int64_t numel = std::min(kDiskPiece, a.numel() - begin);
    const at::Tensor of_a = a.narrow(0, begin, numel), of_b = b.narrow(0, begin, numel);
    const at::Tensor kept = of_a.clone();
    of_a.copy_(of_b);
    of_b.copy_(kept);
    write_behind(of_a);
    write_behind(of_b);
  }
}

}  // namespace

struct Ema::State {
  State(std::vector<at::Tensor> given, EmaOptions the_options)
      : leaves(std::move(given)), options(the_options), flat("Ema", averaged(leaves)) {}

  std::vector<at::Tensor> leaves;
  EmaOptions options;
  FlatParameters flat;
  bool has_average = false;
};

Ema::Ema(std::vector<at::Tensor> leaves, EmaOptions options) {
  FSDP_CHECK(options.decay >= 0 && options.decay < 1, "[Ema] decay: got ", options.decay,
             ", expected a number from 0 to below 1.");
  state_ = std::make_unique<State>(std::move(leaves), options);
}
Ema::~Ema() = default;
Ema::Ema(Ema&&) noexcept = default;
Ema& Ema::operator=(Ema&&) noexcept = default;

void Ema::update() {
  FSDP_CHECK(!state_->has_average,
             "[Ema] update: got a model with its averages, expected the weights that train. Call use_trained() before "
             "the model trains on.");
  enter_library(state_->leaves);
  const Backstage backstage;
  const double decay = state_->options.decay;
  FlatParameters& flat = state_->flat;
  const auto update_here = [decay](const FlatRun& here) {
    move_towards(here, (1 - decay) / (1 - std::pow(decay, static_cast<double>(here.step))));
  };
  DiskPass pass(update_here);
  for (const at::Tensor& leaf : state_->leaves) {
    if (!leaf.requires_grad()) continue;
    const int64_t count = flat.steps_of(leaf) + 1;
    flat.set_steps_of(leaf, count);
    if (leaf.numel() == 0) continue;
    FlatRun run;
    run.weight = flat.states_of(leaf).front().tensor;
    run.gradient = leaf.detach().view({-1});
    run.step = count;
    is_on_disk(run.weight) ? pass.add(run) : update_here(run);
  }
  pass.finish();
}

// As a checkpoint that is read does: whoever still reads the old weights is waited for, and gathers find new ones.
void Ema::exchange() {
  enter_library(state_->leaves);
  const Backstage backstage;
  FlatParameters& flat = state_->flat;
  std::set<const ParameterGroup*> told;
  for (const at::Tensor& leaf : state_->leaves) {
    const auto member = registry::find_leaf(leaf);
    if (!member || !leaf.requires_grad() || !told.insert(member->group.get()).second) continue;
    member->group->begin_main_weight_write();
    member->group->note_raw_main_weight_write();
  }
  for (const at::Tensor& leaf : state_->leaves) {
    if (!leaf.requires_grad() || leaf.numel() == 0 || flat.steps_of(leaf) == 0) continue;
    exchange_contents(leaf.detach().view({-1}), flat.states_of(leaf).front().tensor);
  }
}

void Ema::use_average() {
  if (state_->has_average) return;
  exchange();  // which may throw what a backward left, before it has done anything
  state_->has_average = true;
}

void Ema::use_trained() {
  if (!state_->has_average) return;
  exchange();
  state_->has_average = false;
}

bool Ema::uses_average() const { return state_->has_average; }
double Ema::decay() const { return state_->options.decay; }
int64_t Ema::state_bytes() const { return state_->flat.state_bytes(); }
FlatParameters& Ema::flat_parameters() { return state_->flat; }

}  // namespace fsdp
