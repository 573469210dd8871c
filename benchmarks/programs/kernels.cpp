// Our CPU kernels against LibTorch's operators for the same, in turns, one thread: medians and quartiles of both and of
// the ratio of a turn, and what a copy of the bytes that must move takes. Where that ratio is close to 1 there are more
// turns. FSDP_CPU_ISA holds both to an instruction set. The last line is JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "fsdp/memory/host_cache.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/flat/adamw.h"
#include "kernels/flat/pack.h"
#include "kernels/flat/sgd.h"
#include "kernels/flat/sum_chunks.h"
#include "kernels/flat/sum_squares.h"
#include "kernels/operators/cached_attention.h"
#include "kernels/operators/causal_attention.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/operators/rms_norm.h"
#include "kernels/operators/rope.h"
#include "kernels/operators/swiglu.h"
#include "kernels/products/linear.h"
#include "kernels/products/rowwise_scope.h"
#include "kernels/raw/attention/softmax_weights.h"

namespace fsdp::benchmarks::kernels_program {
namespace {

using Body = std::function<void()>;

constexpr int64_t kVocabulary = 32000, kHidden = 512, kFfn = 1536;

class Comparison {
 public:
  // Rows whose name contains `only`.
  Comparison(int rounds, std::string only) : rounds_(rounds), only_(std::move(only)) {}

  // `moved_bytes`: read and written at least; 0: more than memory counts.
  void add(const std::string& name, const Body& ours, const Body& peer, int64_t moved_bytes) {
    if (name.find(only_) == std::string::npos) return;
    const int64_t our_peak = peak_mib(ours), peer_peak = peak_mib(peer);  // also finds memory and code
    std::vector<double> our_ms{time(ours, 1)}, peer_ms{time(peer, 1)};
    const int times = repetitions(std::min(our_ms[0], peer_ms[0]));
    double spent_ms = our_ms[0] + peer_ms[0];
    if (times > 1) {
      our_ms.clear();
      peer_ms.clear();
    }
    std::vector<double> ratios;
    const auto take_turns = [&](int count) {
      while (std::ssize(our_ms) < count && (our_ms.empty() || spent_ms < kLongestRow)) {
        our_ms.push_back(time(ours, times));
        peer_ms.push_back(time(peer, times));
        spent_ms += times * (our_ms.back() + peer_ms.back());
      }
      ratios.resize(our_ms.size());
      std::transform(peer_ms.begin(), peer_ms.end(), our_ms.begin(), ratios.begin(), std::divides<>());
    };
    take_turns(rounds_);
    if (std::abs(quartile(ratios, 2) - 1) < kCloseToOne) take_turns(kMoreTurns * rounds_);
    nlohmann::json row{{"name", name},
                       {"ours_ms", quartile(our_ms, 2)},
                       {"peer_ms", quartile(peer_ms, 2)},
                       {"ratio", quartile(ratios, 2)},
                       {"turns", ratios.size()},
                       {"ours_quartiles", {quartile(our_ms, 1), quartile(our_ms, 3)}},
                       {"peer_quartiles", {quartile(peer_ms, 1), quartile(peer_ms, 3)}},
                       {"ratio_quartiles", {quartile(ratios, 1), quartile(ratios, 3)}}};
    if (moved_bytes > 0) row["floor_ms"] = copy_ms(moved_bytes / 2);
    row["ours_peak_mib"] = our_peak;
    row["peer_peak_mib"] = peer_peak;
    std::fprintf(stderr, "%s: %.2f of LibTorch's speed\n", name.c_str(), row["ratio"].get<double>());
    result_.push_back(std::move(row));
  }

  const nlohmann::json& result() const { return result_; }

 private:
  static constexpr double kCloseToOne = 0.12;
  static constexpr int kMoreTurns = 5;
  static constexpr double kLongestRow = 60'000;  // ms; LibTorch's bf16 on AVX2 takes a minute for our second

  // As many as take the clock's noise out of what takes so long.
  static int repetitions(double ms) {
    constexpr double kLongEnough = 2;  // ms
    return std::clamp(static_cast<int>(kLongEnough / std::max(ms, 1e-4)), 1, 1000);
  }

  static double time(const Body& body, int times) {
    Stopwatch watch;
    for (int i = 0; i < times; ++i) body();
    return watch.lap() / times;
  }

  // Of four: 2 is the median.
  static double quartile(std::vector<double> values, size_t which) {
    const size_t place = (values.size() - 1) * which / 4;
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(place), values.end());
    return values[place];
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
  std::string only_;
  nlohmann::json result_ = nlohmann::json::array();
};

std::string label_of(at::ScalarType dtype, int64_t count, const char* unit) {
  return std::string(dtype == at::kFloat ? ", fp32, " : ", bf16, ") + std::to_string(count) + unit;
}

void add_flat(Comparison& comparison, at::ScalarType dtype, int64_t numel) {
  const std::string label = label_of(dtype, numel, " numbers");
  const at::Tensor a = at::randn({numel}), b = at::randn({numel}), to = at::empty({numel}),
                   gradient = at::randn({numel}).to(dtype);
  const auto size = static_cast<int64_t>(gradient.element_size());
  comparison.add(
      "pack" + label, [=] { kernels::pack_gradient(to, gradient, 0.5, false); },
      [=] { at::Tensor(to).copy_(gradient).mul_(0.5); }, (4 + size) * numel);
  comparison.add(
      "pack, added" + label, [=] { kernels::pack_gradient(to, gradient, 0.5, true); },
      [=] { at::Tensor(to).add_(gradient, 0.5); }, (8 + size) * numel);
  if (dtype != at::kFloat) return;
  comparison.add(
      "sum of chunks" + label,
      [=] {
        kernels::sum_chunks(to, {a, b}, false);
      },
      [=] {
        at::Tensor out = to;
        at::add_out(out, a, b);
      },
      12 * numel);
  comparison.add(
      "sum of squares" + label, [=] { kernels::sum_squares(a); }, [=] { at::linalg_vector_norm(a).item<float>(); },
      4 * numel);
}

void add_sgd(Comparison& comparison, int64_t numel) {
  const at::Tensor weight = at::randn({numel}), gradient = at::randn({numel}), buffer = at::zeros({numel});
  const kernels::SGDStep options{1e-3, 0.9, 0, 0.1, false, kernels::MomentumState::kRunning};
  comparison.add(
      "SGD, momentum" + label_of(at::kFloat, numel, " numbers"),
      [=] { kernels::sgd_step(weight, gradient, buffer, {}, options); },
      [=] { at::_fused_sgd_({weight}, {gradient}, {buffer}, 0.1, 0.9, 1e-3, 0, false, false, false); }, 20 * numel);
}

void add_adamw(Comparison& comparison, int64_t numel) {
  const at::Tensor weight = at::randn({numel}), gradient = at::randn({numel}), m = at::zeros({numel}),
                   v = at::zeros({numel}), copy = at::empty({numel}, at::kBFloat16), step = at::ones({});
  const kernels::AdamWStep options{1e-3, 0.9, 0.999, 1e-8, 0.1, 10};
  const auto fused = [=] {
    at::_fused_adamw_({weight}, {gradient}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.1, 1e-8, false, false);
  };
  comparison.add(
      "AdamW" + label_of(at::kFloat, numel, " numbers"),
      [=] { kernels::adamw_step(weight, gradient, m, v, {}, options); }, fused, 28 * numel);
  comparison.add(
      "AdamW, bf16 copy" + label_of(at::kFloat, numel, " numbers"),
      [=] { kernels::adamw_step(weight, gradient, m, v, copy, options); },
      [=] {
        fused();
        at::Tensor(copy).copy_(weight);
      },
      30 * numel);
}

// Forward and backward from a scalar, or from what has the gradient given.
Body training(const std::function<at::Tensor()>& result, const std::vector<at::Tensor>& leaves,
              const at::Tensor& gradient = {}) {
  return [=] {
    result().backward(gradient);
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad().reset();
  };
}

void add_operators(Comparison& comparison, at::ScalarType dtype, int64_t tokens) {
  const std::string label = label_of(dtype, tokens, " tokens");
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
        return (sum * y).sum();
      },
      [=] {
        const at::Tensor sum = x + other;
        return (sum * at::rms_norm(sum, {kHidden}, norm, 1e-5)).sum();
      });
  add(
      "SwiGLU", [=] { return kernels::swiglu(gate, up).sum(); }, [=] { return (at::silu(gate) * up).sum(); });
  add(
      "embedding", [=] { return kernels::embedding(head, ids).sum(); }, [=] { return at::embedding(head, ids).sum(); });
  // Not of a sum, which is one number everywhere: LibTorch takes that for a matrix whose rows lie well.
  const at::Tensor grad_wide = at::randn({tokens, kFfn}).to(dtype);
  comparison.add("linear" + label, training([=] { return kernels::linear(x, wide); }, {x, wide}, grad_wide),
                 training([=] { return at::linear(x, wide); }, {x, wide}, grad_wide), 0);
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

// q and k as the decoder has them; the peer is Hugging Face's composite.
void add_rope(Comparison& comparison, at::ScalarType dtype, int64_t tokens) {
  const auto heads = [&](int64_t count) { return at::randn({1, tokens, count, 64}).to(dtype).requires_grad_(); };
  const at::Tensor q = heads(8), k = heads(2), cos = at::randn({tokens, 64}).to(dtype),
                   sin = at::randn({tokens, 64}).to(dtype);
  const auto rotated = [=](const at::Tensor& x) {
    const auto halves = x.chunk(2, -1);
    return x * cos.unsqueeze(1) + at::cat({-halves[1], halves[0]}, -1) * sin.unsqueeze(1);
  };
  comparison.add("rope" + label_of(dtype, tokens, " tokens"),
                 training(
                     [=] {
                       const auto [rotated_q, rotated_k] = kernels::apply_rope(q, k, cos, sin);
                       return rotated_q.sum() + rotated_k.sum();
                     },
                     {q, k}),
                 training([=] { return rotated(q).sum() + rotated(k).sum(); }, {q, k}), 0);
}

// A weight meets rows of generation: tokens of texts that are continued and short prompts, or longer prompts.
void add_rowwise(Comparison& comparison, at::ScalarType dtype, kernels::Rowwise kind, int64_t rows) {
  const at::Tensor x = at::randn({rows, kHidden}).to(dtype), weight = at::randn({kFfn, kHidden}).to(dtype);
  comparison.add((kind == kernels::Rowwise::kFewRows ? "few rows" : "many rows") + label_of(dtype, rows, " rows"),
                 [=] {
                   const at::NoGradGuard no_grad;
                   const kernels::RowwiseScope scope(kind);
                   kernels::linear(x, weight);
                 },
                 [=] {
                   const at::NoGradGuard no_grad;
                   at::linear(x, weight);
                 },
                 static_cast<int64_t>(weight.nbytes()));
}

// What else tokens of generation are made of: attention over a cache, weights of a softmax.
void add_generation(Comparison& comparison, at::ScalarType dtype, int64_t rows) {
  const std::string label = label_of(dtype, rows, " rows");
  constexpr int64_t kLength = 1000, kKeyHeads = 2, kHeads = 8, kDim = 64;
  const at::Tensor q = at::randn({rows, 1, kHeads, kDim}).to(dtype),
                   k = at::randn({rows, kKeyHeads, kLength, kDim}).to(dtype),
                   v = at::randn({rows, kKeyHeads, kLength, kDim}).to(dtype);
  std::vector<int64_t> rows_of, starts(static_cast<size_t>(rows), kLength - 1);
  for (int64_t row = 0; row < rows; ++row) rows_of.push_back(row);
  comparison.add(
      "cached attention" + label, [=] { kernels::cached_attention(q, k, v, rows_of, starts, 0); },
      [=] {
        const at::NoGradGuard no_grad;
        at::scaled_dot_product_attention(q.transpose(1, 2), k, v, {}, 0.0, false, std::nullopt, /*enable_gqa=*/true);
      },
      static_cast<int64_t>(k.nbytes() + v.nbytes()));
  if (dtype != at::kFloat) return;
  const at::Tensor logits = at::randn({rows, kVocabulary}), weights = at::empty({rows, kVocabulary});
  comparison.add(
      "softmax weights" + label,
      [=] {
        for (int64_t row = 0; row < rows; ++row)
          kernels::raw::softmax_weights(logits.const_data_ptr<float>() + row * kVocabulary, kVocabulary, 1.25f,
                                        weights.mutable_data_ptr<float>() + row * kVocabulary);
      },
      [=] { at::softmax(logits * 1.25f, 1); }, 8 * rows * kVocabulary);
}

// With a window the peer needs a mask and computes all products.
void add_attention(Comparison& comparison, at::ScalarType dtype, int64_t tokens, int64_t window) {
  const auto leaf = [&](int64_t heads) { return at::randn({1, tokens, heads, 64}).to(dtype).requires_grad_(); };
  const at::Tensor q = leaf(8), k = leaf(2), v = leaf(2);
  const auto repeated = [](const at::Tensor& x) { return x.repeat_interleave(4, 2).transpose(1, 2); };
  std::optional<at::Tensor> mask;
  if (window > 0) mask = at::ones({tokens, tokens}, at::kBool).tril().triu(1 - window);
  const std::string label =
      (window > 0 ? ", window " + std::to_string(window) : "") + label_of(dtype, tokens, " tokens");
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

int run(int argc, char** argv) {
  int rounds = 9;
  std::string only;
  CLI::App app("Times CPU kernels against LibTorch's operators");
  app.add_option("--rounds", rounds, "turns of a row; five times as many where both are about as fast")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", only, "rows whose name contains this");
  parse_or_exit(app, argc, argv);
  if (const auto mistake = kernels::cpu_isa_mistake()) throw std::invalid_argument(*mistake);
  at::set_num_threads(1);
  enable_host_cache();
  Comparison comparison(rounds, only);
  constexpr int64_t kFlat[] = {int64_t{1} << 12, int64_t{29} << 18};  // in the cache, and beyond it
  for (const int64_t numel : kFlat) {
    add_adamw(comparison, numel);
    add_sgd(comparison, numel);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) add_flat(comparison, dtype, numel);
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {16, 1024}) {
      add_operators(comparison, dtype, tokens);
      add_rope(comparison, dtype, tokens);
    }
    for (const int64_t rows : {1, 8, 32}) add_rowwise(comparison, dtype, kernels::Rowwise::kFewRows, rows);
    for (const int64_t rows : {16, 256, 1024}) add_rowwise(comparison, dtype, kernels::Rowwise::kManyRows, rows);
    for (const int64_t rows : {1, 8}) add_generation(comparison, dtype, rows);
    for (const int64_t tokens : {256, 2048})
      for (const int64_t window : {0, 128}) add_attention(comparison, dtype, tokens, window);
  }
  const nlohmann::json result{
      {"isa", kernels::describe_cpu_isa()}, {"aten", at::get_cpu_capability()}, {"rows", comparison.result()}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::kernels_program
