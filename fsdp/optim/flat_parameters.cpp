#include "fsdp/optim/flat_parameters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/parameters.h"
#include "fsdp/group/registry.h"
#include "fsdp/optim/runs/disk_pass.h"

namespace fsdp {
namespace {

bool is_16_bit(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

bool can_step(const at::Tensor& tensor, WeightTypes weights) {
  if (is_16_bit(tensor.scalar_type())) return weights == WeightTypes::k16Bit && tensor.is_cpu();
  return tensor.scalar_type() == at::kFloat || (tensor.scalar_type() == at::kDouble && tensor.is_cpu());
}

bool has_one_dtype(const FlatRun& run) {
  const at::ScalarType dtype = run.weight.scalar_type();
  return run.gradient.scalar_type() == dtype &&
         std::all_of(run.states.begin(), run.states.end(),
                     [&](const at::Tensor& state) { return state.scalar_type() == dtype; });
}

// Kernels know one dtype: what has another is read and written through pieces of the weight's, which on the host stay
// in its caches.
void update_in_dtype(const FlatRun& run, const FlatParameters::Update& update) {
  if (has_one_dtype(run) || is_16_bit(run.weight.scalar_type())) return update(run);
  const at::ScalarType dtype = run.weight.scalar_type();
  if (run.of != RunOf::kNeighbours) {  // whose rules know the dtypes of their states
    FlatRun whole = run;
    whole.gradient = run.gradient.to(dtype);
    return update(whole);
  }
  for_each_piece(run, run.weight.is_cpu() ? kHostPiece : int64_t{1} << 24, [&](const FlatRun& kept) {
    FlatRun piece = kept;
    piece.gradient = kept.gradient.to(dtype);
    for (at::Tensor& state : piece.states) state = state.to(dtype);
    update(piece);
    for (size_t i = 0; i < kept.states.size(); ++i) {
      if (kept.states[i].scalar_type() != dtype) kept.states[i].copy_(piece.states[i]);
    }
  });
}

void check_is_not_sharded(const at::Tensor& tensor) {
  FSDP_CHECK(!registry::find_parameter(tensor),
             "[optimizer] got a parameter of a sharded module, which only holds data ",
             "while its unit is in use. Build the optimizer on fsdp::parameters(module), after fully_shard().");
}

}  // namespace

bool LeafNeeds::keeps_leaves_apart() const {
  return run == RunOf::kBlocks ||
         std::any_of(states.begin(), states.end(), [](const StateSpec& spec) { return spec.block > 1; });
}

FlatParameters::FlatParameters(std::string optimizer, const std::vector<LeafGroup>& groups)
    : optimizer_(std::move(optimizer)) {
  std::set<const c10::TensorImpl*> seen;
  for (const LeafGroup& group : groups) {
    const size_t options = needs_.size();
    needs_.push_back(group.needs);
    for (const at::Tensor& tensor : group.leaves) {
      FSDP_CHECK(tensor.defined(), "[optimizer] group ", options, " holds an undefined tensor.");
      FSDP_CHECK(seen.insert(tensor.unsafeGetTensorImpl()).second,
                 "[optimizer] a parameter stands twice in its groups.");
      // A frozen one may be unfrozen later.
      if (tensor.requires_grad() || can_step(tensor, group.needs.weights)) {
        add_leaf(tensor, options, seen.size());
      }
    }
  }
  std::stable_sort(leaves_.begin(), leaves_.end(), [](const Leaf& a, const Leaf& b) {
    return std::pair(a.group.get(), a.index) < std::pair(b.group.get(), b.index);
  });
  lay_out_states();
}

void FlatParameters::add_leaf(const at::Tensor& tensor, size_t options, size_t number) {
  FSDP_CHECK(tensor.is_leaf(), "[optimizer] got a tensor that is computed from others, expected leaves.");
  check_is_not_sharded(tensor);
  FSDP_CHECK(can_step(tensor, needs_[options].weights), "[optimizer] got a parameter of dtype ", tensor.scalar_type(),
             " on ", tensor.device(),
             ", expected fp32 main weights, or fp64 on the CPU. Use torch::optim, or shard fp32 parameters with "
             "Precision::bf16(), or take AdamW with WeightDigits::kCompensated or LowBitAdamW with "
             "WeightDigits::kEightBits on the CPU.");
  FSDP_CHECK(tensor.is_contiguous(),
             "[optimizer] got a parameter with gaps between its elements, expected a contiguous one.");
  Leaf leaf{tensor, nullptr, 0, 0, options, number, 0, 0};
  if (const auto member = registry::find_leaf(tensor)) {
    leaf.group = member->group;
    leaf.index = member->index;
    leaf.begin = tensor.storage_offset() - leaf.group->main_weight().local().storage_offset();
  }
  if (needs_of(leaf).run != RunOf::kNeighbours) check_uncut(leaf);
  if (needs_of(leaf).run == RunOf::kTensor) check_whole(leaf);
  if (needs_of(leaf).run == RunOf::kBlocks) check_blocks(leaf);
  leaves_.push_back(std::move(leaf));
}

void FlatParameters::check_uncut(const Leaf& leaf) const {
  FSDP_CHECK(!registry::find_cut(leaf.tensor), "[", optimizer_, "] ", name_of(leaf),
             " is cut for tensor parallelism, expected a whole parameter. Give it to AdamW, Lion or SGD.");
}

std::string FlatParameters::name_of(const Leaf& leaf) const {
  return leaf.group ? "'" + leaf.group->parameter_name(leaf.index) + "'" : "a parameter";
}

// From what all ranks know, so that all refuse or none does.
void FlatParameters::check_whole(const Leaf& leaf) const {
  const std::vector<int64_t> sizes = logical_sizes(leaf.tensor);
  const std::string name = name_of(leaf);
  const auto expected = static_cast<size_t>(needs_of(leaf).dims);
  FSDP_CHECK(expected == 0 || sizes.size() == expected, "[", optimizer_, "] ", name, ": got ", sizes.size(),
             " dims, expected a matrix. Give the others to AdamW (fsdp::muon_groups).");
  FSDP_CHECK(!leaf.group || leaf.group->is_cut_only_at(leaf.index, leaf.group->layout().numels[leaf.index]), "[",
             optimizer_, "] ", name, " of unit '", leaf.group->unit_name(),
             "' is cut between ranks, expected each whole on one. Set ShardOptions::layout = {.granularity = "
             "fsdp::layout::Granularity::kTensor, .owners = fsdp::layout::Owners::kBalanced} for this unit.");
}

void FlatParameters::check_blocks(const Leaf& leaf) const {
  int64_t block = 1;
  for (const StateSpec& spec : needs_of(leaf).states) block = std::max(block, spec.block);
  const std::string name = name_of(leaf);
  const bool are_narrow = needs_of(leaf).weights == WeightTypes::k16Bit;
  FSDP_CHECK(leaf.tensor.scalar_type() == (are_narrow ? at::kBFloat16 : at::kFloat), "[", optimizer_, "] ", name,
             ": got dtype ", leaf.tensor.scalar_type(), ", expected ",
             are_narrow ? "bf16, as its WeightDigits::kEightBits say." : "fp32.");
  FSDP_CHECK(!leaf.group || leaf.group->is_cut_only_at(leaf.index, block), "[", optimizer_, "] ", name, " of unit '",
             leaf.group->unit_name(), "' is cut between ranks inside a block of ", block,
             " elements, expected each block whole on one. Set ShardOptions::layout = {.granularity = "
             "fsdp::layout::Granularity::kBlock, .block = ",
             block, "} for this unit.");
}

// [Note: Where states lie] One tensor for the whole main weight costs no bookkeeping, and no more memory where all its
// leaves keep the same. Where they differ, each stretch of neighbours that keep the same, without a gap, has tensors of
// its own.
void FlatParameters::lay_out_states() {
  for (size_t first = 0; first < leaves_.size();) {
    const Leaf& head = leaves_[first];
    size_t end = first + 1;
    while (head.group && end < leaves_.size() && leaves_[end].group == head.group) ++end;
    const bool alike =
        std::all_of(leaves_.begin() + static_cast<int64_t>(first), leaves_.begin() + static_cast<int64_t>(end),
                    [&](const Leaf& leaf) { return needs_of(leaf) == needs_of(head); });
    if (!head.group || (alike && needs_of(head).run == RunOf::kNeighbours)) {
      const int64_t numel = head.group ? head.group->main_weight().local().numel() : head.tensor.numel();
      for (size_t i = first; i < end; ++i) leaves_[i].stretch = stretches_.size();
      stretches_.push_back({0, numel, {}});
    } else {
      for (size_t i = first; i < end; ++i) add_to_stretch(i, /*is_new=*/i == first || starts_stretch(i));
    }
    first = end;
  }
}

bool FlatParameters::starts_stretch(size_t i) const {
  return needs_of(leaves_[i]).keeps_leaves_apart() || !(needs_of(leaves_[i]) == needs_of(leaves_[i - 1]));
}

void FlatParameters::add_to_stretch(size_t i, bool is_new) {
  Leaf& leaf = leaves_[i];
  const bool is_empty = leaf.tensor.numel() == 0;
  const auto ends_at = [&](const Stretch& stretch) { return stretch.begin + stretch.numel; };
  const bool leaves_gap =
      !is_new && !is_empty && stretches_.back().numel > 0 && ends_at(stretches_.back()) < leaf.begin;
  if (is_new || leaves_gap) stretches_.emplace_back();
  leaf.stretch = stretches_.size() - 1;
  if (is_empty) return;
  Stretch& stretch = stretches_.back();
  if (stretch.numel == 0) stretch.begin = leaf.begin;
  stretch.numel = leaf.begin + leaf.tensor.numel() - stretch.begin;
}

bool FlatParameters::has_flat_gradient(const Leaf& leaf) const {
  return leaf.group && leaf.group->gradients().main_grad().defined() && leaf.tensor.grad().defined() &&
         leaf.tensor.grad().storage().is_alias_of(leaf.group->gradients().main_grad().local().storage());
}

// One past the last leaf that can be updated together with `first`.
size_t FlatParameters::end_of_run(size_t first) const {
  if (!has_flat_gradient(leaves_[first]) || leaves_[first].tensor.numel() == 0) return first + 1;
  if (needs_of(leaves_[first]).run != RunOf::kNeighbours) return first + 1;
  size_t end = first + 1;
  while (end < leaves_.size()) {
    const Leaf& next = leaves_[end];
    const Leaf& head = leaves_[first];
    const bool joins = next.group == head.group && next.index == leaves_[end - 1].index + 1 &&
                       next.options == head.options && next.stretch == head.stretch && next.step == head.step &&
                       next.tensor.numel() > 0 && has_flat_gradient(next);
    if (!joins) break;
    ++end;
  }
  return end;
}

const FlatParameters::Stretch& FlatParameters::states_of(const Leaf& leaf) {
  Stretch& stretch = stretches_[leaf.stretch];
  const at::TensorOptions options = leaf.tensor.options().requires_grad(false);
  for (const StateSpec& spec : needs_of(leaf).states) {
    if (stretch.states.size() == needs_of(leaf).states.size()) break;
    const int64_t numel = (stretch.numel + spec.block - 1) / spec.block;
    const at::ScalarType dtype = spec.dtype.value_or(leaf.tensor.scalar_type());
    const bool is_on_disk = leaf.group && leaf.group->disk();
    stretch.states.push_back(is_on_disk ? leaf.group->disk()->zeros(numel, dtype)
                                        : at::zeros({numel}, options.dtype(dtype)));
  }
  return stretch;
}

FlatRun FlatParameters::make_run(size_t first, size_t end, bool write_copy) {
  Leaf& head = leaves_[first];
  FlatRun run;
  run.options = head.options;
  run.step = head.step + 1;
  for (size_t i = first; i < end; ++i) leaves_[i].step = run.step;
  run.of = needs_of(head).run;
  if (run.of == RunOf::kTensor) run.sizes = logical_sizes(head.tensor);
  if (run.of == RunOf::kBlocks) {
    for (const StateSpec& spec : needs_of(head).states) run.blocks.push_back(spec.block);
  }
  run.parameter = head.number;
  const Stretch& stretch = states_of(head);
  if (!head.group) {
    run.weight = head.tensor.detach().view({-1});
    run.gradient = head.tensor.grad().reshape({-1}).contiguous();
    run.states = stretch.states;
    return run;
  }
  if (run.of == RunOf::kBlocks) run.begin = local_range(head.tensor).begin;
  const Leaf& last = leaves_[end - 1];
  const int64_t numel = last.begin + last.tensor.numel() - head.begin;
  run.weight = head.group->main_weight().local().narrow(0, head.begin, numel);
  run.gradient = has_flat_gradient(head) ? head.group->gradients().main_grad().local().narrow(0, head.begin, numel)
                                         : head.tensor.grad().contiguous();
  const at::Tensor copy = write_copy ? head.group->model_weight_copy() : at::Tensor();
  if (copy.defined()) run.copy = copy.narrow(0, head.begin, numel);
  const int64_t begin = numel > 0 ? head.begin - stretch.begin : 0;
  const bool is_alone = needs_of(head).keeps_leaves_apart();
  for (const at::Tensor& state : stretch.states) run.states.push_back(is_alone ? state : state.narrow(0, begin, numel));
  return run;
}

void FlatParameters::enter_library() const {
  std::set<std::shared_ptr<GroupOwner>> owners;
  for (const Leaf& leaf : leaves_) {
    if (leaf.group) {
      owners.insert(leaf.group->owner());
    } else {
      check_is_not_sharded(leaf.tensor);  // since the optimizer was built
    }
  }
  owners.erase(nullptr);
  for (const auto& owner : owners) owner->on_library_entry();
}

void FlatParameters::for_each_run(const Update& update) {
  enter_library();
  const Backstage backstage;
  // All of them before the first is written: ranks may write their groups in different orders.
  for (const Leaf& leaf : leaves_) {
    if (leaf.group && leaf.tensor.grad().defined()) leaf.group->finish_reading_stale_weights();
  }
  DiskPass pass([&](const FlatRun& here) { update_in_dtype(here, update); });
  for (size_t first = 0; first < leaves_.size();) {
    const size_t end = end_of_run(first);
    update_run(first, end, update, pass);
    const bool is_last = end == leaves_.size() || leaves_[end].group != leaves_[first].group;
    if (is_last && leaves_[first].group) leaves_[first].group->publish_model_weight();
    first = end;
  }
  pass.finish();
}

void FlatParameters::update_in_backward(const Update& update) {
  enter_library();
  for (const Leaf& leaf : leaves_) {
    if (!leaf.group || in_backward_.count(leaf.group) > 0) continue;
    FSDP_CHECK(
        !leaf.group->updates_in_backward(), "[step_in_backward] unit '", leaf.group->unit_name(),
        "' is updated in the backward by another optimizer already. One optimizer must have all parameters of a ",
        "unit for that.");
    in_backward_.insert(leaf.group);
    leaf.group->set_update_in_backward([this, group = leaf.group.get(), update] {
      const Backstage backstage;
      DiskPass pass([&](const FlatRun& here) { update_in_dtype(here, update); });
      for (size_t first = 0; first < leaves_.size();) {
        const size_t end = end_of_run(first);
        if (leaves_[first].group.get() == group) update_run(first, end, update, pass);
        first = end;
      }
      pass.finish();
    });
  }
}

FlatParameters::~FlatParameters() {
  for (const auto& group : in_backward_) group->set_update_in_backward(nullptr);
}

// What is on a disk is updated later, by the pass: nobody looks at it before that is finished. A copy in memory may be
// written only here.
void FlatParameters::update_run(size_t first, size_t end, const Update& update, DiskPass& pass) {
  const Leaf& head = leaves_[first];
  const at::Tensor& gradient = head.tensor.grad();
  if (!gradient.defined()) return;
  const bool is_main_grad = has_flat_gradient(head);  // which Precision::main_grad may have narrowed
  FSDP_CHECK(is_main_grad || gradient.scalar_type() == head.tensor.scalar_type(),
             "[optimizer] got a gradient of dtype ", gradient.scalar_type(), ", expected ", head.tensor.scalar_type(),
             " like its parameter.");
  FSDP_CHECK(gradient.numel() == head.tensor.numel(), "[optimizer] gradient of ", gradient.numel(),
             " elements for a parameter of ", head.tensor.numel(), ". Do not replace .grad by another shape.");
  const bool write_copy = head.group && head.group->begin_model_weight_write();
  const FlatRun run = make_run(first, end, write_copy);
  if (run.weight.numel() > 0) {
    const bool has_disk = head.group && head.group->disk();
    has_disk ? pass.add(run) : update_in_dtype(run, update);
    if (has_disk && run.copy.defined() && !is_on_disk(run.copy)) pass.update_all();
  }
  if (head.group) {
    for (size_t i = first; i < end; ++i) head.group->note_raw_main_weight_write(leaves_[i].index);
  } else {
    run.weight.unsafeGetTensorImpl()->bump_version();
  }
  if (write_copy) head.group->set_model_weight_current();
}

std::vector<at::Tensor> FlatParameters::leaves() const {
  std::vector<at::Tensor> tensors;
  for (const Leaf& leaf : leaves_) tensors.push_back(leaf.tensor);
  return tensors;
}

size_t FlatParameters::find(const at::Tensor& leaf) const {
  const auto found =
      std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& each) { return each.tensor.is_same(leaf); });
  FSDP_ASSERT(found != leaves_.end(), "a leaf of another optimizer");
  return static_cast<size_t>(found - leaves_.begin());
}

int64_t FlatParameters::steps_of(const at::Tensor& leaf) const { return leaves_[find(leaf)].step; }

void FlatParameters::set_steps_of(const at::Tensor& leaf, int64_t steps) { leaves_[find(leaf)].step = steps; }

std::vector<LeafStateTensor> FlatParameters::states_of(const at::Tensor& tensor) {
  const Leaf& leaf = leaves_[find(tensor)];
  const Stretch& stretch = states_of(leaf);
  const int64_t begin = tensor.numel() > 0 ? leaf.begin - stretch.begin : 0;
  std::vector<LeafStateTensor> parts;
  for (size_t i = 0; i < stretch.states.size(); ++i) {
    const StateSpec& spec = needs_of(leaf).states[i];
    const at::Tensor& state = stretch.states[i];
    parts.push_back({spec.name, spec.block == 1 ? state.narrow(0, begin, tensor.numel()) : state, spec.block});
  }
  return parts;
}

int64_t FlatParameters::state_bytes() const {
  int64_t bytes = 0;
  for (const Stretch& stretch : stretches_) {
    for (const at::Tensor& state : stretch.states) bytes += static_cast<int64_t>(state.nbytes());
  }
  return bytes;
}

}  // namespace fsdp
