// The kernels of a GPU one at a time, beside what LibTorch has for the same and beside the time that their bytes take
// at the speed of a copy in the same run. Prints one line of JSON; benchmarks/gpu.py makes a table of it.
#include <ATen/Functions.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/device_clock.h"
#include "kernels/flat/adamw.h"
#include "kernels/flat/pack.h"
#include "kernels/flat/sgd.h"
#include "kernels/flat/sum_squares.h"
#include "kernels/operators/causal_attention.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/operators/rms_norm.h"
#include "kernels/operators/rope.h"
#include "kernels/operators/swiglu.h"

namespace fsdp::benchmarks::gpu_kernels_program {
namespace {

struct Options {
  std::string device = "cuda";
  int64_t tokens = 32768;  // of what works row by row
  int64_t sequence = 8192;
  int64_t hidden = 2048, ffn = 11008, heads = 16, kv_heads = 4, head_dim = 128, vocabulary = 128256;
  int64_t parameters = int64_t{1} << 28;
  int rounds = 10;
};

using Work = std::function<void()>;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

class GpuKernels {
 public:
  explicit GpuKernels(const Options& options)
      : options_(options), device_(device_named(options.device)), clock_(device_) {}

  nlohmann::json run() {
    measure_copy();
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      dtype_ = dtype;
      rows();
      positions();
      vocabulary();
      attention();
    }
    flat();
    return {{"copy_gb_per_s", copy_gb_per_s_}, {"kernels", rows_}};
  }

 private:
  // Milliseconds of the median round.
  double time(const Work& work) {
    std::vector<double> ms = clock_.time(work, options_.rounds);
    const auto middle = ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2);
    std::nth_element(ms.begin(), middle, ms.end());
    return *middle;
  }

  at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return at::randn(sizes, at::device(device_).dtype(at::kFloat)).to(dtype);
  }
  at::Tensor random(at::IntArrayRef sizes) const { return random(sizes, dtype_); }

  // `bytes`: each input read once, each output written once; 0: not memory that bounds it.
  void compare(const std::string& name, double bytes, const Work& ours, const Work& rival) {
    const double floor = bytes / copy_gb_per_s_ * 1e-6;
    // In turns, so that a change of clocks meets both.
    const double first = time(ours), other = time(rival), again = time(ours), other_again = time(rival);
    rows_.push_back({{"kernel", name},
                     {"dtype", c10::toString(dtype_)},
                     {"ours_ms", {first, again}},
                     {"rival_ms", {other, other_again}},
                     {"floor_ms", floor}});
  }

  // Forward without a graph, and forward and backward.
  void compare_differentiable(const std::string& name, const Tensors& inputs, double forward_bytes, double both_bytes,
                              const Function& ours, const Function& rival) {
    const auto forward = [&](const Function& function) {
      return [&] {
        const at::NoGradGuard no_grad;
        function(inputs);
      };
    };
    compare(name, forward_bytes, forward(ours), forward(rival));
    Tensors leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach());
    Tensors wanted;
    for (at::Tensor& leaf : leaves) {
      if (leaf.is_floating_point()) wanted.push_back(leaf.requires_grad_());
    }
    at::Tensor grad;
    {
      const at::NoGradGuard no_grad;
      grad = at::randn_like(ours(inputs));
    }
    const auto both = [&](const Function& function) {
      return [&] { torch::autograd::grad({function(leaves)}, wanted, {grad}, /*retain_graph=*/false); };
    };
    compare(name + ", with backward", both_bytes, both(ours), both(rival));
  }

  void measure_copy() {
    const at::Tensor from = random({options_.parameters}, at::kFloat), to = at::empty_like(from);
    copy_gb_per_s_ = 2e-6 * static_cast<double>(from.nbytes()) / time([&] { to.copy_(from); });
  }

  void rows() {
    const at::Tensor x = random({options_.tokens, options_.hidden}),
                     residual = random({options_.tokens, options_.hidden});
    const at::Tensor weight = random({options_.hidden}).abs();
    const auto size = static_cast<double>(x.nbytes());
    compare_differentiable(
        "rms_norm", {x, weight}, 2 * size, 5 * size,
        [](const Tensors& in) { return kernels::rms_norm(in[0], in[1], 1e-6); },
        [&](const Tensors& in) { return at::rms_norm(in[0], {options_.hidden}, in[1], 1e-6); });
    compare_differentiable(
        "add_rms_norm", {x, residual, weight}, 4 * size, 7 * size,
        [](const Tensors& in) {
          const auto [sum, normal] = kernels::add_rms_norm(in[0], in[1], in[2], 1e-6);
          return normal;
        },
        [&](const Tensors& in) { return at::rms_norm(in[0] + in[1], {options_.hidden}, in[2], 1e-6); });
    const at::Tensor gate = random({options_.sequence, options_.ffn}), up = random({options_.sequence, options_.ffn});
    const auto wide = static_cast<double>(gate.nbytes());
    compare_differentiable(
        "swiglu", {gate, up}, 3 * wide, 8 * wide, [](const Tensors& in) { return kernels::swiglu(in[0], in[1]); },
        [](const Tensors& in) { return at::silu(in[0]) * in[1]; });
  }

  void positions() {
    const int64_t count = options_.sequence, batch = options_.tokens / options_.sequence, dim = options_.head_dim;
    const at::Tensor q = random({batch, count, options_.heads, dim}),
                     k = random({batch, count, options_.kv_heads, dim});
    const at::Tensor angles = at::rand({count, dim}, at::device(device_)) * 6;
    const at::Tensor cos = angles.cos().to(dtype_), sin = angles.sin().to(dtype_);
    const auto turned = [&](const at::Tensor& x) {
      const auto halves = x.chunk(2, -1);
      return x * cos.unsqueeze(1) + at::cat({-halves[1], halves[0]}, -1) * sin.unsqueeze(1);
    };
    compare(
        "rope, in place", 2.0 * static_cast<double>(q.nbytes() + k.nbytes()),
        [&] {
          const at::NoGradGuard no_grad;
          at::Tensor a = q, b = k;
          kernels::apply_rope_(a, b, cos, sin);
        },
        [&] {
          const at::NoGradGuard no_grad;
          turned(q);
          turned(k);
        });
  }

  void vocabulary() {
    const at::Tensor table = random({options_.vocabulary, options_.hidden});
    const at::Tensor ids =
        at::rand({options_.tokens}, at::device(device_)).pow(4).mul(options_.vocabulary - 1).to(at::kLong);
    const auto rows = static_cast<double>(options_.tokens * options_.hidden * table.element_size());
    compare_differentiable(
        "embedding", {table, ids}, 2 * rows, 3 * rows + static_cast<double>(table.nbytes()),
        [](const Tensors& in) { return kernels::embedding(in[0], in[1]); },
        [](const Tensors& in) { return at::embedding(in[0], in[1]); });
    const at::Tensor logits = random({options_.sequence, options_.vocabulary}),
                     targets = ids.narrow(0, 0, options_.sequence);
    const auto size = static_cast<double>(logits.nbytes());
    compare_differentiable(
        "cross_entropy", {logits, targets}, size, 3 * size,
        [](const Tensors& in) { return kernels::cross_entropy(in[0], in[1]); },
        [](const Tensors& in) { return at::cross_entropy_loss(in[0], in[1]).to(at::kFloat); });
  }

  void attention() {
    if (dtype_ == at::kFloat) return;  // training computes it in bf16; in fp32 both are LibTorch's
    const int64_t count = options_.sequence, dim = options_.head_dim;
    const at::Tensor q = random({1, count, options_.heads, dim}), k = random({1, count, options_.kv_heads, dim}),
                     v = random({1, count, options_.kv_heads, dim});
    compare_differentiable(
        "causal_attention", {q, k, v}, 0, 0,
        [](const Tensors& in) { return kernels::causal_attention(in[0], in[1], in[2]); },
        [](const Tensors& in) {
          return at::scaled_dot_product_attention(in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2),
                                                  {}, 0,
                                                  /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true)
              .transpose(1, 2);
        });
  }

  // Ours write the bf16 weight that is gathered next in the same pass; LibTorch's need a copy for it.
  void flat() {
    dtype_ = at::kFloat;
    const int64_t n = options_.parameters;
    const at::Tensor weight = random({n}), gradient = random({n}) * 1e-3, first = at::zeros_like(weight),
                     second = at::zeros_like(weight), copy = at::empty({n}, weight.options().dtype(at::kBFloat16));
    const auto count = static_cast<double>(n);
    kernels::AdamWStep adamw{1e-4, 0.9, 0.95, 1e-8, 0.1, 1};
    const at::Tensor steps = at::ones({}, weight.options());
    compare(
        "AdamW and bf16 copy", 30 * count, [&] { kernels::adamw_step(weight, gradient, first, second, copy, adamw); },
        [&] {
          at::_fused_adamw_({weight}, {gradient}, {first}, {second}, {}, {steps}, 1e-4, 0.9, 0.95, 0.1, 1e-8, false,
                            false);
          copy.copy_(weight);
        });
    kernels::SGDStep sgd{1e-4, 0.9, 0, 0, false, kernels::MomentumState::kRunning};
    compare(
        "SGD and bf16 copy", 22 * count, [&] { kernels::sgd_step(weight, gradient, first, copy, sgd); },
        [&] {
          at::_fused_sgd_({weight}, {gradient}, {first}, 0, 0.9, 1e-4, 0, false, false, /*is_first_step=*/false);
          copy.copy_(weight);
        });
    compare(
        "sum of squares", 4 * count, [&] { kernels::sum_squares_on_device(gradient); },
        [&] { at::linalg_vector_norm(gradient); });
    compare(
        "gradient into its buffer", 6 * count, [&] { kernels::pack_gradient(weight, copy, 0.5, /*add=*/false); },
        [&] { weight.copy_(copy).mul_(0.5); });
  }

  Options options_;
  c10::Device device_;
  DeviceClock clock_;
  at::ScalarType dtype_ = at::kFloat;
  double copy_gb_per_s_ = 0;
  nlohmann::json rows_ = nlohmann::json::array();
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times the kernels of a GPU beside LibTorch's; see scripts/bench_gpu.sh");
  app.add_option("--device", options.device, "cuda, or cpu to try the program")->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_option("--tokens", options.tokens, "of norms, rope and embedding")->check(CLI::PositiveNumber);
  app.add_option("--sequence", options.sequence, "of attention, swiglu and cross entropy")->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "width")->check(CLI::PositiveNumber);
  app.add_option("--ffn", options.ffn, "width of swiglu")->check(CLI::PositiveNumber);
  app.add_option("--vocabulary", options.vocabulary, "entries")->check(CLI::PositiveNumber);
  app.add_option("--parameters", options.parameters, "of optimizers")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "that are timed, four times each")->check(CLI::PositiveNumber);
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.device == "cuda") load_cuda();
  std::printf("%s\n", GpuKernels(options).run().dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::gpu_kernels_program
