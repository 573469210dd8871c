#include "fsdp/parallel/ring_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/parallel/attention_block.h"
#include "fsdp/parallel/zigzag.h"
#include "kernels/base/once_differentiable.h"

namespace fsdp::parallel {
namespace {

// Some queries of a rank and half of a rank's block of keys.
struct Meeting {
  int64_t first, rows;  // of this rank's queries
  int64_t first_key;    // of the block's
  Hidden hidden;
};

// Who sees what: each rank has two chunks of the sequence, as zigzag.h says.
class Sight {
 public:
  Sight(const ContextView& view, int64_t own_tokens, const Ranks& ranks, c10::Device device)
      : ranks_(ranks.size()), rank_(ranks.rank()), chunk_(own_tokens / 2), window_(view.window), device_(device) {
    if (view.documents_BT.defined()) documents_ = view.documents_BT.to(device);
  }

  int64_t chunk() const { return chunk_; }

  // Calls visit(Meeting) for what this rank's queries see of the keys of rank `from`.
  template <class Visit>
  void for_each(int from, const Visit& visit) const {
    for (const int64_t half : {0, 1}) {
      for (const int64_t key_half : {0, 1}) {
        const int64_t queries = start_of(rank_, half), keys = start_of(from, key_half);
        for (int64_t row = 0; row < chunk_; row += kQueriesAtATime) {
          Meeting meeting{half * chunk_ + row, std::min(kQueriesAtATime, chunk_ - row), key_half * chunk_, {}};
          if (meet(queries + row, keys, meeting)) visit(meeting);
        }
      }
    }
  }

 private:
  int64_t start_of(int rank, int64_t half) const { return (half == 0 ? rank : 2 * ranks_ - 1 - rank) * chunk_; }

  // Whether any of the queries at `query` and after sees one of the keys at `key` and after.
  bool meet(int64_t query, int64_t key, Meeting& meeting) const {
    const int64_t last_query = query + meeting.rows - 1, last_key = key + chunk_ - 1;
    if (key > last_query || (window_ > 0 && query - last_key >= window_)) return false;
    const bool is_whole = last_key <= query && (window_ == 0 || last_query - key < window_);
    if (is_whole && !documents_.defined()) return true;
    const auto options = at::TensorOptions(at::kLong).device(device_);
    const at::Tensor before = at::arange(query, query + meeting.rows, options).unsqueeze(1) -
                              at::arange(key, key + chunk_, options).unsqueeze(0);
    at::Tensor seen = before.ge(0).unsqueeze(0);
    if (window_ > 0) seen = seen.logical_and(before.lt(window_));
    if (documents_.defined()) {
      seen = documents_.narrow(1, query, meeting.rows)
                 .unsqueeze(2)
                 .eq(documents_.narrow(1, key, chunk_).unsqueeze(1))
                 .logical_and_(seen);
      if (!seen.any().item<bool>()) return false;
    }
    meeting.hidden = seen.logical_not();
    return true;
  }

  int64_t ranks_;
  int rank_;
  int64_t chunk_, window_;
  c10::Device device_;
  at::Tensor documents_;
};

struct Ring : torch::CustomClassHolder {
  Ring(Sight sight, std::shared_ptr<Ranks> ranks, std::string layer)
      : sight(std::move(sight)), ranks(std::move(ranks)), layer(std::move(layer)) {}

  // What a message is called: each step differs, so that a rank that waits for the next is not taken for one that came.
  std::string message(const char* what, int step) const { return c10::str(layer, " (", what, " ", step + 1, ")"); }

  // Calls visit(step, from, block) for the block of each rank, this one's first.
  template <class Visit>
  void for_blocks(at::Tensor block, const char* what, const Visit& visit) const {
    const int size = ranks->size();
    for (int step = 0; step < size; ++step) {
      std::optional<Passing> passing;
      if (step + 1 < size) passing.emplace(ranks->pass_on(block, message(what, step)));
      visit(step, (ranks->rank() - step + size) % size, block);
      if (passing) block = passing->wait();
    }
  }

  Sight sight;
  std::shared_ptr<Ranks> ranks;
  std::string layer;
};

at::ScalarType sum_type(const at::Tensor& x) { return at::toOpMathType(x.scalar_type()); }

// [B, T, H, D] -> [B, K, G, T, D]
at::Tensor by_key_head(const at::Tensor& x_BTHD, int64_t key_heads) {
  return x_BTHD.unflatten(2, {key_heads, -1}).permute({0, 2, 3, 1, 4}).to(sum_type(x_BTHD)).contiguous();
}
at::Tensor by_token(const at::Tensor& x, at::ScalarType dtype) {
  return x.permute({0, 3, 1, 2, 4}).flatten(2, 3).to(dtype).contiguous();
}

// Keys or values of a meeting, [B, K, S, D], of a block [2, B, T, K, D].
at::Tensor of_block(const at::Tensor& block, int64_t which, const Meeting& meeting, int64_t chunk) {
  return block[which].narrow(1, meeting.first_key, chunk).transpose(1, 2);
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q_BTHD,
                            const at::Tensor& k_BTKD, const at::Tensor& v_BTKD, const c10::intrusive_ptr<Ring>& ring) {
    const at::Tensor queries = by_key_head(q_BTHD, k_BTKD.size(2));
    const AttentionSums sums(queries);
    const int64_t chunk = ring->sight.chunk();
    ring->for_blocks(at::stack({k_BTKD, v_BTKD}), "block", [&](int, int from, const at::Tensor& block) {
      ring->sight.for_each(from, [&](const Meeting& meeting) {
        const auto keys_or_values = [&](int64_t which) {
          return of_block(block, which, meeting, chunk).to(queries.scalar_type());
        };
        add_block(sums, meeting.first, queries.narrow(3, meeting.first, meeting.rows), keys_or_values(0),
                  keys_or_values(1), meeting.hidden);
      });
    });
    const AttentionResult result = result_of(sums);
    const at::Tensor output = by_token(result.output, q_BTHD.scalar_type());
    context->save_for_backward({q_BTHD, k_BTKD, v_BTKD, output, result.log_sum_exp});
    context->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return kernels::once_differentiable("ring_attention",
                                        "parallel::context_attention with at::globalContext().setSDPUseFlash(false) "
                                        "and, on a GPU, setSDPUseMemEfficient(false) and setSDPUseCuDNN(false)",
                                        gradients, input_gradients(*context, gradients[0]));
  }

  static torch::autograd::variable_list input_gradients(torch::autograd::AutogradContext& context,
                                                        const at::Tensor& gradient) {
    const auto capsule = context.saved_data["ring"].toCapsule();
    const auto* ring = static_cast<const Ring*>(capsule.get());
    const auto saved = context.get_saved_variables();
    const at::Tensor &q_BTHD = saved[0], &k_BTKD = saved[1], &v_BTKD = saved[2];
    const at::NoGradGuard no_grad;
    const auto arranged = [&](const at::Tensor& x) { return by_key_head(x, k_BTKD.size(2)); };
    const at::Tensor queries = arranged(q_BTHD), output_gradient = arranged(gradient);
    const QueryGradients whole = {queries, saved[4], output_gradient,
                                  (arranged(saved[3]) * output_gradient).sum(-1, /*keepdim=*/true),
                                  at::zeros_like(queries)};
    const at::Tensor own = at::stack({k_BTKD, v_BTKD});
    const at::Tensor own_gradient = backward_of_blocks(*ring, whole, own);
    return {by_token(whole.gradient, q_BTHD.scalar_type()), own_gradient[0].to(k_BTKD.scalar_type()),
            own_gradient[1].to(v_BTKD.scalar_type()), at::Tensor()};
  }

  // Blocks come around as in the forward, and the sums of each block's gradients, one step behind, go home.
  static at::Tensor backward_of_blocks(const Ring& ring, const QueryGradients& whole, const at::Tensor& own) {
    const int64_t chunk = ring.sight.chunk();
    at::Tensor own_gradient;
    std::optional<Passing> passing;  // of gradients
    ring.for_blocks(own, "backward, block", [&](int step, int from, const at::Tensor& block) {
      const at::Tensor gradient = at::zeros_like(block, whole.queries.options());
      ring.sight.for_each(from, [&](const Meeting& meeting) {
        const auto rows = [&](const at::Tensor& x) { return x.narrow(3, meeting.first, meeting.rows); };
        const auto part = [&](const at::Tensor& x, int64_t which) { return of_block(x, which, meeting, chunk); };
        const auto dtype = whole.queries.scalar_type();
        add_block_gradients({rows(whole.queries), rows(whole.log_sum_exp), rows(whole.output_gradient),
                             rows(whole.slope), rows(whole.gradient)},
                            part(block, 0).to(dtype), part(block, 1).to(dtype), meeting.hidden, part(gradient, 0),
                            part(gradient, 1));
      });
      if (step == 0) {
        own_gradient = gradient;
        return;
      }
      if (passing) gradient.add_(passing->wait());
      passing.emplace(ring.ranks->pass_on(gradient, ring.message("gradients", step - 1)));
    });
    if (passing) own_gradient.add_(passing->wait());
    return own_gradient;
  }
};

}  // namespace

ContextExchange choose_exchange(ContextExchange wanted, const at::Tensor& k_BTKD, bool has_documents,
                                const Ranks& ranks) {
  const ContextShape shape{k_BTKD.size(0), k_BTKD.size(1), k_BTKD.numel(), static_cast<int64_t>(k_BTKD.element_size()),
                           ranks.size()};
  return choose_exchange(wanted, shape, has_documents ? RowsHold::kDocuments : RowsHold::kOneDocument);
}

at::Tensor ring_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                          const ContextView& view, const std::shared_ptr<Ranks>& ranks, const std::string& layer) {
  check_context_shapes(q_BTHD, k_BTKD, v_BTKD, layer);
  const int64_t own = q_BTHD.size(1), tokens = own * ranks->size();
  zigzag_positions(tokens, ranks->rank(), ranks->size());  // refuses what has no two chunks for each rank
  check_documents(view, tokens, layer);
  return RingAttention::apply(q_BTHD, k_BTKD, v_BTKD,
                              c10::make_intrusive<Ring>(Sight(view, own, *ranks, q_BTHD.device()), ranks, layer));
}

}  // namespace fsdp::parallel
