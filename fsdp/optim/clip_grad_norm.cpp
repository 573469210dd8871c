#include "fsdp/optim/clip_grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/buffer/disk_memory.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/leaves.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/group/registry.h"
#include "fsdp/optim/norm_listener.h"
#include "fsdp/optim/runs/disk_pass.h"
#include "kernels/flat/sum_squares.h"

namespace fsdp {
namespace {

// Sum of |x|^p over a tensor, or with an infinite p the largest |x|. 0-dim fp64.
at::Tensor sum_of_powers(const at::Tensor& gradient, double p) {
  const at::Tensor sizes = gradient.to(at::kDouble).abs();
  if (!std::isinf(p)) return sizes.pow(p).sum();
  return sizes.numel() == 0 ? at::zeros({}, sizes.options()) : sizes.amax();
}

static_assert(kDiskPiece % kernels::kSumBlock == 0 && kDiskPiece % kernels::kSquaresBlock == 0,
              "slices of gradients would be added up otherwise than all of them");
static_assert(kTreeBlock % kernels::kSquaresBlock == 0, "slices of gradients would begin inside of a block");

// Of values [n], [1]: what of powers is to be added up, or the largest.
at::Tensor total_of(const at::Tensor& values, double p) {
  return std::isinf(p) ? values.amax(0, /*keepdim=*/true) : values.sum(0, /*keepdim=*/true);
}

// Over ranks that have a part each. COLLECTIVE. value [1], fp64; so is the result.
at::Tensor total_over(const std::shared_ptr<comm::Comm>& comm, at::Tensor value, double p) {
  if (!std::isinf(p)) {
    comm->all_reduce_small(value, {"gradient norm", "", ""});
    return value;
  }
  const at::Tensor all = at::empty({comm->size()}, value.options());
  comm->all_gather(all, value, {"gradient norm", "", ""}).wait();
  return total_of(all, p);
}

// A sum of powers of gradients on one device, and the groups of ranks that hold the rest of it; none: this rank has all
// of it.
struct PartialSum {
  std::vector<std::shared_ptr<comm::Comm>> comms;
  at::Device device;
  double p;
  SumOrder order;
  std::shared_ptr<comm::Comm> mean_over = nullptr;  // ranks that have sums of their own of what is ignored
  double on_host = 0;                               // for the 2-norm of gradients on the CPU
  std::vector<at::Tensor> powers = {};              // for others: 0-dim fp64, to be added up
  kernels::ExactSum exact = {};  // SumOrder::kTree, but for the largest |x|, which is exact in any order

  bool is_exact() const { return order == SumOrder::kTree && !std::isinf(p); }

  void add(const at::Tensor& gradient) {
    if (is_exact()) {
      add_exactly(gradient);
    } else if (p != 2) {
      powers.push_back(sum_of_powers(gradient, p));
    } else if (device.is_cpu()) {
      on_host += kernels::sum_squares(gradient);
    } else {
      powers.push_back(kernels::sum_squares_on_device(gradient));
    }
  }

  // Whether add_slices() can, with the bits of add().
  bool adds_slices(const at::Tensor& gradient) const {
    return p == 2 && is_on_disk(gradient) && (is_exact() || gradient.scalar_type() == at::kFloat);
  }

  void add_slices(DiskSlices& slices) {
    double sum = 0;
    slices.pass([&](const at::Tensor& slice) {
      is_exact() ? kernels::add_squares(exact, slice) : void(sum = kernels::sum_squares(slice, sum));
    });
    on_host += sum;
  }

  void add_exactly(const at::Tensor& gradient) {
    if (p == 2) return kernels::add_squares(exact, gradient);
    const at::Tensor powers_of_each = gradient.to(at::kDouble).abs().pow(p);
    const auto* each = powers_of_each.const_data_ptr<double>();
    for (int64_t i = 0; i < powers_of_each.numel(); ++i) exact.add(each[i]);
  }

  // COLLECTIVE over the groups: sums of integers, whose order does not matter.
  at::Tensor exact_over_ranks() const {
    kernels::ExactSum sum = exact;
    for (const auto& comm : comms) {
      kernels::ExactSum::Words words = sum.words();
      comm->all_reduce_small(at::from_blob(words.data(), {static_cast<int64_t>(words.size())}, at::kLong),
                             {"gradient norm", "", ""});
      sum.set_words(words);
    }
    return at::full({1}, sum.rounded(), at::kDouble);
  }

  // COLLECTIVE over the groups. [1], fp64.
  at::Tensor over_ranks() const {
    if (is_exact()) return exact_over_ranks();
    at::Tensor value =
        powers.empty() ? at::full({1}, on_host, at::device(device).dtype(at::kDouble)) : total_of(at::stack(powers), p);
    for (const auto& comm : comms) value = total_over(comm, value, p);
    if (!mean_over) return value;
    value = total_over(mean_over, value, p);
    return std::isinf(p) ? value : value / mean_over->size();
  }
};

// The ranks that have this leaf as an ignored parameter, each perhaps with a gradient of its own; null: it is none.
std::shared_ptr<comm::Comm> ranks_that_ignore(const at::Tensor& leaf, const std::shared_ptr<GroupOwner>& owner) {
  return owner && !registry::find_leaf(leaf) && owner->ignores(leaf) ? owner->ranks_of_step() : nullptr;
}

std::shared_ptr<GroupOwner> owner_of(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    if (const auto member = registry::find_leaf(leaf)) return member->group->owner();
  }
  return nullptr;
}

// In the order in which the leaves name them, which is the same on every rank: all take part in the same sums, with or
// without a gradient.
std::vector<PartialSum> local_sums(const std::vector<at::Tensor>& leaves, double p) {
  std::vector<PartialSum> sums;
  std::vector<size_t> sum_of(leaves.size());
  const auto owner = owner_of(leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& leaf = leaves[i];
    const auto member = registry::find_leaf(leaf);
    FSDP_CHECK(
        !member || !member->group->updates_in_backward(), "[clip_grad_norm_] unit '", member->group->unit_name(),
        "' is updated in the backward (step_in_backward), so its gradients are gone. Clip by value in the model, or ",
        "call optimizer.step() after the backward.");
    const SumOrder order = member ? member->group->sum_order() : SumOrder::kAsTheyCome;
    auto comms = member ? member->group->main_weight_comms() : std::vector<std::shared_ptr<comm::Comm>>();
    if (const auto cut = registry::find_cut(leaf)) comms.push_back(cut->ranks);
    const auto mean_over = ranks_that_ignore(leaf, owner);
    auto known = std::find_if(sums.begin(), sums.end(), [&](const PartialSum& item) {
      return item.comms == comms && item.device == leaf.device() && item.order == order && item.mean_over == mean_over;
    });
    if (known == sums.end()) known = sums.insert(sums.end(), PartialSum{comms, leaf.device(), p, order, mean_over});
    sum_of[i] = static_cast<size_t>(known - sums.begin());
  }
  std::vector<at::Tensor> sliced;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (sums[sum_of[i]].adds_slices(leaves[i].grad())) sliced.push_back(leaves[i].grad());
  }
  DiskSlices slices(sliced, DiskSlices::Use::kRead);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& gradient = leaves[i].grad();
    PartialSum& sum = sums[sum_of[i]];
    if (!gradient.defined()) continue;
    if (sum.adds_slices(gradient)) {
      sum.add_slices(slices);
    } else {
      sum.add(gradient);
      write_behind(gradient);
    }
  }
  return sums;
}

// Of `total`, [1] fp64: a sum of powers. The arithmetic of both branches is the same.
template <class Number>
GradNorm make_grad_norm(const at::Tensor& sum, double max_norm, double p) {
  constexpr auto kDtype = c10::CppTypeToScalarType<Number>::value;
  const at::Tensor total = p == 2 ? sum : std::isinf(p) ? sum.square() : sum.pow(2 / p);  // whose root is the norm
  const auto most = static_cast<Number>(max_norm);
  constexpr auto kTiny = static_cast<Number>(1e-6F);
  if (total.is_cpu()) {
    const auto norm = static_cast<Number>(std::sqrt(total.item<double>()));
    const Number factor = std::min(Number{1}, most / (norm + kTiny));
    return {at::scalar_tensor(norm, kDtype), at::scalar_tensor(factor, kDtype)};
  }
  const at::Tensor norm = total.sqrt().to(kDtype).squeeze(0);
  const at::Tensor factor = at::scalar_tensor(most, kDtype) / (norm + kTiny);
  return {norm, factor.clamp_max(1).nan_to_num(/*nan=*/1)};
}

}  // namespace

at::Tensor clip_grad_norm_(const torch::nn::Module& module, double max_norm, double norm_type) {
  return clip_grad_norm_(leaves_of(module), max_norm, norm_type);
}

GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm, double norm_type,
                   const std::shared_ptr<comm::Comm>& others) {
  FSDP_CHECK(max_norm > 0, "[clip_grad_norm_] max_norm: got ", max_norm, ", expected a number above 0.");
  FSDP_CHECK(norm_type > 0, "[clip_grad_norm_] norm_type: got ", norm_type,
             ", expected 2, another number above 0, or "
             "infinity.");
  enter_library(leaves);
  const Backstage backstage;
  at::Tensor total;
  for (const PartialSum& sum : local_sums(leaves, norm_type)) {
    const at::Tensor shared = sum.over_ranks();
    total = total.defined() ? total_of(at::cat({total, shared.to(total.device())}), norm_type) : shared;
  }
  if (!total.defined()) total = at::zeros({1}, at::kDouble);
  if (others) total = total_over(others, total, norm_type);
  const bool in_fp64 = std::any_of(leaves.begin(), leaves.end(),
                                   [](const at::Tensor& leaf) { return leaf.scalar_type() == at::kDouble; });
  const GradNorm found =
      in_fp64 ? make_grad_norm<double>(total, max_norm, norm_type) : make_grad_norm<float>(total, max_norm, norm_type);
  tell_norm_listeners(leaves, found.norm, norm_type);
  return found;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& leaves, double max_norm, double norm_type,
                           const std::shared_ptr<comm::Comm>& others) {
  const GradNorm found = grad_norm(leaves, max_norm, norm_type, others);
  const Backstage backstage;
  const bool on_host = found.factor.is_cpu();  // else whether it clips is not known here, and it multiplies in any case
  const double factor = on_host ? found.factor.item<double>() : 0;
  if (factor >= 1) return found.norm;
  std::vector<at::Tensor> sliced;
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor& gradient = leaf.grad();
    if (!gradient.defined()) continue;
    if (on_host && is_on_disk(gradient)) {
      sliced.push_back(gradient);
    } else if (on_host) {
      gradient.mul_(factor);
    } else {
      gradient.mul_(found.factor.to(leaf.device()));
    }
  }
  DiskSlices slices(sliced, DiskSlices::Use::kChange);
  for (size_t i = 0; i < sliced.size(); ++i) slices.pass([&](const at::Tensor& slice) { slice.mul_(factor); });
  finish_windows(sliced);
  return found.norm;
}

float GradNorm::value() const { return norm.item<float>(); }

}  // namespace fsdp
