// The parts of a training step on a GPU, one at a time, beside what bounds them: the matrix rate and the copy rate of
// the same run. Prints one line of JSON.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/device_clock.h"
#include "fsdp/base/device_memory.h"
#include "kernels/flat/adamw.h"
#include "kernels/operators/cross_entropy.h"

namespace fsdp::benchmarks::gpu_parts_program {
namespace {

struct Options {
  std::string device = "cuda";
  int64_t matrix = 8192;                  // rows and columns
  int64_t copy_mib = 2048;                // bytes that are copied
  int64_t parameters = int64_t{1} << 28;  // of the optimizer
  int64_t tokens = 8192, hidden = 2048, vocabulary = 128256;
  int rounds = 7;
};

// Of bandwidths GB/s, of products TFLOP/s.
class GpuParts {
 public:
  explicit GpuParts(const Options& options)
      : options_(options),
        device_(device_named(options.device)),
        clock_(device_),
        bf16_(at::device(device_).dtype(at::kBFloat16)),
        fp32_(at::device(device_).dtype(at::kFloat)) {}

  nlohmann::json run() {
    matrix_rate();
    copy_rate();
    adamw();
    cross_entropy();
    return result_;
  }

 private:
  std::vector<double> time(const std::function<void()>& work) { return clock_.time(work, options_.rounds); }

  // For each round.
  static std::vector<double> rates(double amount, const std::vector<double>& ms) {
    std::vector<double> rates;
    for (const double value : ms) rates.push_back(amount / value);
    return rates;
  }

  void matrix_rate() {
    const int64_t n = options_.matrix;
    const at::Tensor a = at::randn({n, n}, fp32_).to(at::kBFloat16), b = at::randn({n, n}, fp32_).to(at::kBFloat16);
    at::Tensor c = at::empty({n, n}, bf16_);
    const auto cubed = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    result_["matmul_tflops"] = rates(2e-9 * cubed, time([&] { at::mm_out(c, a, b); }));
  }

  void copy_rate() {
    const at::Tensor from = at::randn({options_.copy_mib << 18}, fp32_);
    const at::Tensor to = at::empty_like(from);
    result_["copy_gb_per_s"] = rates(2e-6 * static_cast<double>(from.nbytes()), time([&] { to.copy_(from); }));
  }

  // Reads gradient, weight and moments, writes weight, moments and the bf16 copy: 30 bytes a parameter.
  void adamw() {
    const int64_t n = options_.parameters;
    const at::Tensor weight = at::randn({n}, fp32_), gradient = at::randn({n}, fp32_);
    const at::Tensor m = at::zeros({n}, fp32_), v = at::zeros({n}, fp32_), copy = at::empty({n}, bf16_);
    kernels::AdamWStep step;
    step.lr = 1e-4;
    step.step = 1;
    result_["adamw_gb_per_s"] =
        rates(30e-6 * static_cast<double>(n), time([&] { kernels::adamw_step(weight, gradient, m, v, copy, step); }));
  }

  // Three products are the least: logits, and the gradients of input and weight.
  void cross_entropy() {
    at::Tensor x_NE = at::randn({options_.tokens, options_.hidden}, fp32_).to(at::kBFloat16);
    at::Tensor weight_VE = (at::randn({options_.vocabulary, options_.hidden}, fp32_) * 0.02).to(at::kBFloat16);
    x_NE.requires_grad_();
    weight_VE.requires_grad_();
    const at::Tensor targets_N =
        at::randint(options_.vocabulary, {options_.tokens}, at::device(device_).dtype(at::kLong));
    const auto work = [&] {
      kernels::linear_cross_entropy(x_NE, weight_VE, targets_N).backward();
      x_NE.mutable_grad() = at::Tensor();
      weight_VE.mutable_grad() = at::Tensor();
    };
    const int64_t gradients = static_cast<int64_t>(x_NE.nbytes() + weight_VE.nbytes());
    work();
    const int64_t before = device_memory(device_).value_or(DeviceMemory()).allocated;
    fsdp::reset_peak_memory(device_);
    const double cubed =
        static_cast<double>(options_.tokens * options_.hidden) * static_cast<double>(options_.vocabulary);
    result_["cross_entropy"] = {{"ms", time(work)}, {"tflop", 6e-12 * cubed}};
    if (const auto memory = device_memory(device_)) {
      result_["cross_entropy"]["extra_bytes"] = memory->peak_allocated - before - gradients;
    }
  }

  Options options_;
  c10::Device device_;
  DeviceClock clock_;
  at::TensorOptions bf16_, fp32_;
  nlohmann::json result_;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times the parts of a training step on a GPU; see scripts/bench_gpu.sh");
  app.add_option("--device", options.device, "cuda, or cpu to try the program")->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_option("--matrix", options.matrix, "rows and columns of the product")->check(CLI::PositiveNumber);
  app.add_option("--copy-mib", options.copy_mib, "MiB that are copied")->check(CLI::PositiveNumber);
  app.add_option("--parameters", options.parameters, "of the optimizer's pass")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "of the cross entropy")->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden, "of the cross entropy")->check(CLI::PositiveNumber);
  app.add_option("--vocabulary", options.vocabulary, "of the cross entropy")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "that are timed")->check(CLI::PositiveNumber);
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.device == "cuda") load_cuda();
  std::printf("%s\n", GpuParts(options).run().dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::gpu_parts_program
