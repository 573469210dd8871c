#include "fsdp/parallel/regions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "fsdp/base/libtorch_version.h"

namespace fsdp::parallel {
namespace {

enum class Move { kNone, kSum, kGather, kScatterSum, kOwnPart };

// What forward and backward do.
struct Crossing : torch::CustomClassHolder {
  Crossing(Move forward, Move backward, int64_t dim, std::shared_ptr<Ranks> ranks, std::string layer)
      : forward(forward), backward(backward), dim(dim), ranks(std::move(ranks)), layer(std::move(layer)) {}

  at::Tensor move(const at::Tensor& x) const {
    switch (forward) {
      case Move::kSum:
        return ranks->sum(x, layer);
      case Move::kGather:
        return ranks->gather(x, dim, layer);
      case Move::kScatterSum:
        return ranks->scatter_sum(x, dim, layer);
      case Move::kOwnPart:
        return ranks->own_part(x, dim, layer).contiguous();
      case Move::kNone:
        break;
    }
    return x.view_as(x);
  }

  c10::intrusive_ptr<Crossing> reversed() const {
    return c10::make_intrusive<Crossing>(backward, forward, dim, ranks, layer + " (backward)");
  }

  Move forward, backward;
  int64_t dim;
  std::shared_ptr<Ranks> ranks;
  std::string layer;
};

struct Cross : torch::autograd::Function<Cross> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Crossing>& crossing) {
    context->saved_data["crossing"] = c10::IValue::make_capsule(crossing);
    return crossing->move(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto capsule = context->saved_data["crossing"].toCapsule();
    const auto* crossing = static_cast<const Crossing*>(capsule.get());
    // Itself a crossing, so that a gradient of the gradient crosses, too.
    return {Cross::apply(grads[0], crossing->reversed()), at::Tensor()};
  }
};

at::Tensor cross(const at::Tensor& x, Move forward, Move backward, int64_t dim, const std::shared_ptr<Ranks>& ranks,
                 const std::string& layer) {
  if (ranks->size() == 1) return x;
  const int64_t from_start = x.dim() == 0 ? 0 : at::maybe_wrap_dim(dim, x.dim());
  return Cross::apply(x, c10::make_intrusive<Crossing>(forward, backward, from_start, ranks, layer));
}

// The tensor that entered last, and what came of it. Everything is weak: what a graph or its saved tensors keep alive
// can be used again, and nothing is kept longer for that.
struct LastEntry {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> from{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  uint32_t from_version = 0;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory{c10::intrusive_ptr<c10::StorageImpl>()};
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
  libtorch::WeakNodePtr node{libtorch::NodePtr()};
  std::weak_ptr<Ranks> ranks;
  std::optional<int64_t> tokens_dim;
};
thread_local LastEntry last_entry;

bool can_be_shared(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad() && !x.is_inference(); }

at::Tensor find_entry(const at::Tensor& x, std::optional<int64_t> tokens_dim, const std::shared_ptr<Ranks>& ranks) {
  const LastEntry& last = last_entry;
  if (last.from.lock().get() != x.unsafeGetTensorImpl() || last.from_version != x._version()) return {};
  if (last.ranks.lock() != ranks || last.tokens_dim != tokens_dim) return {};
  auto node = last.node.lock();
  const auto memory = last.memory.lock();
  if (!node || !memory) return {};
  at::Tensor entered = at::empty({0}, x.options().requires_grad(false));
  entered.set_(c10::Storage(memory), last.offset, last.sizes, last.strides);
  torch::autograd::impl::set_gradient_edge(entered, {std::move(node), 0});
  return entered;
}

}  // namespace

at::Tensor enter_parts_together(const at::Tensor& x, std::optional<int64_t> tokens_dim,
                                const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  if (ranks->size() == 1) return x;
  const bool is_shared = can_be_shared(x);
  if (at::Tensor known = is_shared ? find_entry(x, tokens_dim, ranks) : at::Tensor(); known.defined()) return known;
  const at::Tensor entered =
      tokens_dim ? enter_parts_from_tokens(x, *tokens_dim, ranks, layer) : enter_parts(x, ranks, layer);
  if (!is_shared) return entered;
  last_entry = {decltype(LastEntry::from)(x.getIntrusivePtr()),
                static_cast<uint32_t>(x._version()),
                decltype(LastEntry::memory)(entered.storage().getWeakStorageImpl()),
                entered.storage_offset(),
                entered.sizes().vec(),
                entered.strides().vec(),
                libtorch::WeakNodePtr(entered.grad_fn()),
                ranks,
                tokens_dim};
  return entered;
}

at::Tensor enter_parts(const at::Tensor& x, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  return cross(x, Move::kNone, Move::kSum, 0, ranks, layer);
}

at::Tensor leave_parts(const at::Tensor& x, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  return cross(x, Move::kSum, Move::kNone, 0, ranks, layer);
}

at::Tensor enter_parts_from_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks,
                                   const std::string& layer) {
  return cross(x, Move::kGather, Move::kScatterSum, dim, ranks, layer);
}

at::Tensor leave_parts_to_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks,
                                 const std::string& layer) {
  return cross(x, Move::kScatterSum, Move::kGather, dim, ranks, layer);
}

at::Tensor own_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  return cross(x, Move::kOwnPart, Move::kGather, dim, ranks, layer);
}

at::Tensor all_tokens(const at::Tensor& x, int64_t dim, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  return cross(x, Move::kGather, Move::kOwnPart, dim, ranks, layer);
}

}  // namespace fsdp::parallel
