// Our CPU kernels against LibTorch's operators for the same, in turns, one thread: medians, and what a copy of the
// bytes that must move takes. The last line is JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/measure.h"
#include "fsdp/memory/host_cache.h"
#include "kernels/adamw.h"
#include "kernels/causal_attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace fsdp::benchmarks {
namespace {

using Body = std::function<void()>;

constexpr int64_t kVocabulary = 32000, kHidden = 512, kFfn = 1536;

class Comparison {
 public:
  explicit Comparison(int rounds) : rounds_(rounds) {}

  // `moved_bytes`: read and written at least; 0: more than memory counts.
  void add(const std::string& name, const Body& ours, const Body& peer, int64_t moved_bytes) {
    ours();
    peer();
    std::vector<double> our_ms, peer_ms;
    for (int round = 0; round < rounds_; ++round) {
      our_ms.push_back(time(ours));
      peer_ms.push_back(time(peer));
    }
    nlohmann::json row{{"name", name}, {"ours_ms", middle(our_ms)}, {"peer_ms", middle(peer_ms)}};
    if (moved_bytes > 0) row["floor_ms"] = copy_ms(moved_bytes / 2);
    row["ours_peak_mib"] = peak_mib(ours);
    row["peer_peak_mib"] = peak_mib(peer);
    result_.push_back(std::move(row));
  }

  const nlohmann::json& result() const { return result_; }

 private:
  static double time(const Body& body) {
    Stopwatch watch;
    body();
    return watch.lap();
  }

  static double middle(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }

  // Tensors that exist at once beyond those before.
  static int64_t peak_mib(const Body& body) {
    trim_host_cache();
    const int64_t before = host_cache_stats().in_use_bytes;
    reset_host_cache_peak();
    body();
    return (host_cache_stats().peak_in_use_bytes - before) >> 20;
  }

  int rounds_;
  nlohmann::json result_ = nlohmann::json::array();
};

void add_adamw(Comparison& comparison, int64_t numel) {
  const at::Tensor weight = at::randn({numel}), gradient = at::randn({numel}), m = at::zeros({numel}),
                   v = at::zeros({numel}), copy = at::empty({numel}, at::kBFloat16), step = at::ones({});
  const kernels::AdamWStep options{1e-3, 0.9, 0.999, 1e-8, 0.1, 10};
  const auto fused = [=] {
    at::_fused_adamw_({weight}, {gradient}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.1, 1e-8, false, false);
  };
  comparison.add(
      "AdamW, fp32", [=] { kernels::adamw_step(weight, gradient, m, v, {}, options); }, fused, 28 * numel);
  comparison.add(
      "AdamW, bf16 copy", [=] { kernels::adamw_step(weight, gradient, m, v, copy, options); },
      [=] {
        fused();
        at::Tensor(copy).copy_(weight);
      },
      30 * numel);
}

// Forward and backward.
Body training(const std::function<at::Tensor()>& loss, const std::vector<at::Tensor>& leaves) {
  return [=] {
    loss().backward();
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
  };
}

void add_operators(Comparison& comparison, at::ScalarType dtype, int64_t tokens) {
  const std::string label =
      std::string(dtype == at::kFloat ? ", fp32, " : ", bf16, ") + std::to_string(tokens) + " tokens";
  const auto leaf = [&](at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.1).to(dtype).requires_grad_(); };
  const at::Tensor ids = at::randint(0, kVocabulary, {tokens}, at::kLong);
  const at::Tensor x = leaf({tokens, kHidden}), other = leaf({tokens, kHidden}), gate = leaf({tokens, kFfn}),
                   up = leaf({tokens, kFfn});
  const at::Tensor norm = leaf({kHidden}), head = leaf({kVocabulary, kHidden}), wide = leaf({kFfn, kHidden});
  const at::Tensor logits = leaf({tokens, kVocabulary});
  const std::vector<at::Tensor> leaves = {x, other, gate, up, norm, head, wide, logits};
  const auto add = [&](const char* name, const std::function<at::Tensor()>& ours,
                       const std::function<at::Tensor()>& peer) {
    comparison.add(name + label, training(ours, leaves), training(peer, leaves), 0);
  };
  add(
      "RMSNorm", [=] { return kernels::rms_norm(x, norm, 1e-5).sum(); },
      [=] { return at::rms_norm(x, {kHidden}, norm, 1e-5).sum(); });
  add(
      "add + RMSNorm",
      [=] {
        const auto [sum, y] = kernels::add_rms_norm(x, other, norm, 1e-5);
        return (sum + y).sum();
      },
      [=] {
        const at::Tensor sum = x + other;
        return (sum + kernels::rms_norm(sum, norm, 1e-5)).sum();
      });
  add(
      "SwiGLU", [=] { return kernels::swiglu(gate, up).sum(); }, [=] { return (at::silu(gate) * up).sum(); });
  add(
      "embedding", [=] { return kernels::embedding(head, ids).sum(); }, [=] { return at::embedding(head, ids).sum(); });
  add(
      "linear", [=] { return kernels::linear(x, wide).sum(); }, [=] { return at::linear(x, wide).sum(); });
  add(
      "cross entropy", [=] { return kernels::cross_entropy(logits, ids); },
      [=] { return at::cross_entropy_loss(logits, ids); });
  add(
      "linear + cross entropy", [=] { return kernels::linear_cross_entropy(x, head, ids); },
      [=] { return at::cross_entropy_loss(at::linear(x, head), ids); });
  const kernels::LossTerms terms{1e-4, 0.1};
  add(
      "linear + cross entropy, z-loss, smoothing",
      [=] { return kernels::linear_cross_entropy(x, head, ids, kernels::Reduction::kMean, terms); },
      [=] {
        const at::Tensor result = at::linear(x, head).to(at::kFloat);
        return at::cross_entropy_loss(result, ids, {}, at::Reduction::Mean, kernels::kIgnoreIndex,
                                      terms.label_smoothing) +
               terms.z_loss * result.logsumexp(1).square().mean();
      });
}

// With a window the peer needs a mask and computes all products.
void add_attention(Comparison& comparison, at::ScalarType dtype, int64_t tokens, int64_t window) {
  const auto leaf = [&](int64_t heads) { return at::randn({1, tokens, heads, 64}).to(dtype).requires_grad_(); };
  const at::Tensor q = leaf(8), k = leaf(2), v = leaf(2);
  const auto repeated = [](const at::Tensor& x) { return x.repeat_interleave(4, 2).transpose(1, 2); };
  std::optional<at::Tensor> mask;
  if (window > 0) mask = at::ones({tokens, tokens}, at::kBool).tril().triu(1 - window);
  const std::string label = (window > 0 ? ", window " + std::to_string(window) : "") +
                            (dtype == at::kFloat ? ", fp32, " : ", bf16, ") + std::to_string(tokens) + " tokens";
  comparison.add(
      "attention" + label, training([=] { return kernels::causal_attention(q, k, v, {}, window).sum(); }, {q, k, v}),
      training(
          [=] {
            return at::scaled_dot_product_attention(q.transpose(1, 2), repeated(k), repeated(v), mask, 0.0, !mask)
                .sum();
          },
          {q, k, v}),
      0);
}

}  // namespace
}  // namespace fsdp::benchmarks

int main(int argc, char** argv) try {
  using namespace fsdp::benchmarks;
  int rounds = 7;
  CLI::App app("Times CPU kernels against LibTorch's operators");
  app.add_option("--rounds", rounds, "of which the median counts")->check(CLI::PositiveNumber);
  parse_or_exit(app, argc, argv);
  at::set_num_threads(1);
  fsdp::enable_host_cache();
  Comparison comparison(rounds);
  add_adamw(comparison, int64_t{29} << 20);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {16, 1024}) add_operators(comparison, dtype, tokens);
    for (const int64_t window : {0, 256}) add_attention(comparison, dtype, /*tokens=*/2048, window);
  }
  std::printf("%s\n", comparison.result().dump().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
