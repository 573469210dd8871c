// Steps of each optimizer over matrices of fp32 (or bf16) numbers, in turns with a reference on the same: LibTorch's
// fused kernels where it has them, else the formula in its operators. `--memory NAME`: what a process grows by for
// weights, gradients and state of a model that one rank trains. The last line is JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "kernels/base/cpu_isa.h"

namespace fsdp::benchmarks::optimizers_program {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Options {
  int rounds = 7;
  int threads = 1;
  int64_t width = 1024;  // of square matrices
  int64_t matrices = 8;
  std::string only;
  std::string memory;
};

// ---- ours

struct Choice {
  std::string name;
  at::ScalarType weights;
  std::function<std::unique_ptr<FlatOptimizer>(const Tensors&)> make;
  const char* reference;
};

template <class Optimizer, class... Arguments>
auto maker(Arguments... arguments) {
  return [=](const Tensors& leaves) -> std::unique_ptr<FlatOptimizer> {
    return std::make_unique<Optimizer>(leaves, arguments...);
  };
}

constexpr double kLr = 1e-3, kDecay = 0.1;

std::vector<Choice> choices() {
  const AdamWOptions adamw{.lr = kLr, .weight_decay = kDecay};
  AdamWOptions bf16_moments = adamw, compensated = adamw, nearest = adamw, at_random = adamw;
  bf16_moments.exp_avg_dtype = bf16_moments.exp_avg_sq_dtype = at::kBFloat16;
  compensated.digits = WeightDigits::kCompensated;
  nearest.digits = WeightDigits::kEightBits;
  at_random.digits = WeightDigits::kEightBitsAtRandom;
  return {{"adamw", at::kFloat, maker<AdamW>(adamw), "at::_fused_adamw_"},
          {"adamw, moments in bf16", at::kFloat, maker<AdamW>(bf16_moments), ""},
          {"adamw, bf16 weights", at::kBFloat16, maker<AdamW>(compensated), ""},
          {"adamw_8bit", at::kFloat, maker<LowBitAdamW>(adamw), "operators"},
          {"adamw_8bit, linear", at::kFloat, maker<LowBitAdamW>(adamw, BlockCode::kLinear), ""},
          {"adamw_8bit, bf16 weights, nearest", at::kBFloat16, maker<LowBitAdamW>(nearest), ""},
          {"adamw_8bit, bf16 weights, random", at::kBFloat16, maker<LowBitAdamW>(at_random), ""},
          {"sgd", at::kFloat, maker<SGD>(SGDOptions{.lr = kLr, .momentum = 0.9, .weight_decay = kDecay}),
           "at::_fused_sgd_"},
          {"lion", at::kFloat, maker<Lion>(LionOptions{.lr = kLr, .weight_decay = kDecay}), "operators"},
          {"schedule_free", at::kFloat,
           maker<ScheduleFreeAdamW>(ScheduleFreeAdamWOptions{.lr = kLr, .weight_decay = kDecay}), "operators"},
          {"adafactor", at::kFloat, maker<Adafactor>(AdafactorOptions{.lr = kLr, .weight_decay = kDecay}), "operators"},
          {"muon", at::kFloat, maker<Muon>(MuonOptions{.lr = kLr}), "operators"}};
}

Tensors make_leaves(const Options& options, at::ScalarType dtype) {
  Tensors leaves;
  for (int64_t i = 0; i < options.matrices; ++i) {
    leaves.push_back(at::randn({options.width, options.width}).to(dtype).requires_grad_());
    leaves.back().mutable_grad() = at::randn({options.width, options.width}).to(dtype);
  }
  return leaves;
}

// ---- references

class Reference {
 public:
  Reference(std::string name, const Options& options) : name_(std::move(name)) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& leaf : make_leaves(options, at::kFloat)) {
      weights_.push_back(leaf.detach());
      gradients_.push_back(leaf.grad());
      first_.push_back(at::zeros_like(weights_.back()));
      second_.push_back(at::zeros_like(weights_.back()));
      steps_.push_back(at::zeros({}));
      first_code_.push_back(at::zeros({leaf.numel() / kCodeBlock, kCodeBlock}, at::kByte));
      second_code_.push_back(first_code_.back().clone());
      first_scale_.push_back(at::zeros({leaf.numel() / kCodeBlock}));
      second_scale_.push_back(first_scale_.back().clone());
    }
  }

  void step() {
    const at::NoGradGuard no_grad;
    if (name_ == "adamw") {
      for (at::Tensor& step : steps_) step.add_(1);
      at::_fused_adamw_(weights_, gradients_, first_, second_, {}, steps_, kLr, 0.9, 0.999, kDecay, 1e-8, false, false);
    } else if (name_ == "sgd") {
      at::_fused_sgd_(weights_, gradients_, first_, kDecay, 0.9, kLr, 0, false, false, false);
    } else if (name_ == "lion") {
      for (size_t i = 0; i < weights_.size(); ++i) lion(i);
    } else if (name_ == "schedule_free") {
      ++num_steps_;
      for (size_t i = 0; i < weights_.size(); ++i) schedule_free(i);
    } else if (name_ == "adafactor") {
      ++num_steps_;
      for (size_t i = 0; i < weights_.size(); ++i) adafactor(i);
    } else if (name_ == "muon") {
      for (size_t i = 0; i < weights_.size(); ++i) muon(i);
    } else {
      for (size_t i = 0; i < weights_.size(); ++i) coded_adamw(i);
    }
  }

 private:
  // Both in pieces that stay in a cache, as this library had them before it had kernels.
  template <class Update>
  static void for_pieces(int64_t numel, const Update& update) {
    constexpr int64_t kPiece = int64_t{1} << 14;
    for (int64_t begin = 0; begin < numel; begin += kPiece) {
      update(
          [=](const at::Tensor& tensor) { return tensor.view(-1).narrow(0, begin, std::min(kPiece, numel - begin)); });
    }
  }

  void lion(size_t i) {
    for_pieces(weights_[i].numel(), [&](const auto& piece) {
      const at::Tensor gradient = piece(gradients_[i]), momentum = piece(first_[i]);
      piece(weights_[i]).mul_(1 - kLr * kDecay).sub_(momentum.lerp(gradient, 0.1).sign_(), kLr);
      momentum.lerp_(gradient, 0.01);
    });
  }

  void schedule_free(size_t i) {
    const double share = 1.0 / num_steps_, correction = 1 - std::pow(0.999, num_steps_);
    for_pieces(weights_[i].numel(), [&](const auto& piece) {
      const at::Tensor gradient = piece(gradients_[i]), weight = piece(weights_[i]), iterate = piece(first_[i]);
      if (num_steps_ == 1) iterate.copy_(weight);
      const at::Tensor squares = piece(second_[i]);
      squares.mul_(0.999).addcmul_(gradient, gradient, 0.001);
      at::Tensor direction = gradient / (squares / correction).sqrt_().add_(1e-8);
      direction.add_(weight, kDecay);
      weight.lerp_(iterate, share).add_(direction, kLr * (0.9 * (1 - share) - 1));
      iterate.sub_(direction, kLr);
    });
  }

  // As torch.optim.Adafactor has it, a whole matrix at a time.
  void adafactor(size_t i) {
    const at::Tensor &gradient = gradients_[i], &weight = weights_[i];
    if (num_steps_ == 1) {
      first_[i] = at::zeros({weight.size(0), 1});
      second_[i] = at::zeros({1, weight.size(1)});
    }
    const double newest = std::pow(num_steps_, -0.8), numel = static_cast<double>(weight.numel());
    const double size = std::max(1e-3, weight.norm().item<double>() / std::sqrt(numel));
    weight.mul_(1 - kLr * kDecay);
    first_[i].lerp_(gradient.norm(2, {1}, true).square_().div_(weight.size(1)), newest);
    second_[i].lerp_(gradient.norm(2, {0}, true).square_().div_(weight.size(0)), newest);
    at::Tensor update = first_[i].matmul(second_[i]).div_(first_[i].mean(0, true).clamp_min_(0x1p-23));
    update.clamp_min_(0x1p-46).rsqrt_().mul_(gradient);
    const double length = std::max(1.0, update.norm().item<double>() / std::sqrt(numel));
    weight.add_(update, -size * std::min(kLr, 1 / std::sqrt(num_steps_)) / length);
  }

  // As torch.optim.Muon has it.
  void muon(size_t i) {
    first_[i].lerp_(gradients_[i], 0.05);
    at::Tensor x = gradients_[i].lerp(first_[i], 0.95).to(at::kBFloat16);
    x.div_(x.norm().clamp_min(1e-7));
    for (int iteration = 0; iteration < 5; ++iteration) {
      const at::Tensor gram = x.mm(x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445);
    }
    weights_[i].mul_(1 - kLr * kDecay).add_(x, -kLr);
  }

  // In pieces that stay in a cache.
  void coded_adamw(size_t i) {
    constexpr int64_t kPiece = 64;
    steps_[i].add_(1);
    for (int64_t block = 0; block < first_code_[i].size(0); block += kPiece) {
      const auto piece = [&](const at::Tensor& tensor) {
        return tensor.view({-1, kCodeBlock}).narrow(0, block, kPiece);
      };
      const auto scales = [&](const at::Tensor& tensor) { return tensor.narrow(0, block, kPiece); };
      const at::Tensor m = signed_.decode(piece(first_code_[i]), scales(first_scale_[i]));
      const at::Tensor v = unsigned_.decode(piece(second_code_[i]), scales(second_scale_[i]));
      at::_fused_adamw_({piece(weights_[i])}, {piece(gradients_[i])}, {m}, {v}, {}, {steps_[i]}, kLr, 0.9, 0.999,
                        kDecay, 1e-8, false, false);
      signed_.encode(m, piece(first_code_[i]), scales(first_scale_[i]));
      unsigned_.encode(v, piece(second_code_[i]), scales(second_scale_[i]));
    }
  }

  std::string name_;
  int num_steps_ = 0;
  Tensors weights_, gradients_, first_, second_, steps_, first_code_, second_code_, first_scale_, second_scale_;
  BlockCoder signed_{BlockCode::kDynamic, CodeSign::kSigned, at::kCPU};
  BlockCoder unsigned_{BlockCode::kDynamic, CodeSign::kUnsigned, at::kCPU};
};

// ---- times

double quartile(std::vector<double> values, size_t which) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * which / 4];
}

void add_quartiles(nlohmann::json& row, const std::string& whose, const std::vector<double>& ms) {
  row[whose + "_ms"] = quartile(ms, 2);
  row[whose + "_quartiles"] = {quartile(ms, 1), quartile(ms, 3)};
}

double time(const std::function<void()>& body) {
  Stopwatch watch;
  body();
  return watch.lap();
}

// In turns, after one of each that is not counted.
nlohmann::json compare(const Choice& choice, const Options& options) {
  const Tensors leaves = make_leaves(options, choice.weights);
  const std::unique_ptr<FlatOptimizer> ours = choice.make(leaves);
  const bool has_reference = *choice.reference != '\0';
  std::unique_ptr<Reference> theirs;
  if (has_reference) theirs = std::make_unique<Reference>(choice.name, options);
  std::vector<double> our_ms, their_ms;
  for (int round = 0; round <= options.rounds; ++round) {
    our_ms.push_back(time([&] { ours->step(); }));
    if (theirs) their_ms.push_back(time([&] { theirs->step(); }));
  }
  our_ms.erase(our_ms.begin());
  nlohmann::json row{{"name", choice.name}, {"reference", choice.reference}};
  add_quartiles(row, "ours", our_ms);
  if (theirs) {
    their_ms.erase(their_ms.begin());
    add_quartiles(row, "reference", their_ms);
  }
  const auto numel = static_cast<double>(options.matrices * options.width * options.width);
  row["state_bytes_per_parameter"] = static_cast<double>(ours->state_bytes()) / numel;
  row["bytes_per_parameter"] =
      static_cast<double>(ours->state_bytes()) / numel + 2 * static_cast<double>(c10::elementSize(choice.weights));
  return row;
}

// ---- memory

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const Options& options) {
    for (int64_t i = 0; i < options.matrices; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(options.width, options.width).bias(false)));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Stack);

// Two steps; before the second's update weights, gradients and state are all there.
nlohmann::json measure_memory(const Choice& choice, const Options& options) {
  const World world = init();
  const LayoutOptions blocks{.granularity = layout::Granularity::kBlock, .block = kCodeBlock};
  const auto step_of = [&](const Options& size, int steps) {
    Stack model = deferred([&] {
      Stack made(size);
      made->to(choice.weights);
      return made;
    });
    const Mesh mesh = Mesh::shard(world);
    for (const auto& layer : *model->layers) fully_shard(*layer, mesh, {.layout = blocks});
    fully_shard(*model, mesh, {.layout = blocks});
    const auto optimizer = choice.make(parameters(*model));
    int64_t resident = 0;
    for (int step = 0; step < steps; ++step) {
      zero_grad(*model);
      model->forward(torch::randn({4, size.width}).to(choice.weights)).to(at::kFloat).square().mean().backward();
      if (step + 1 == steps) resident = process_memory().resident_bytes;
      optimizer->step();
    }
    return resident;
  };
  Options small = options;
  small.matrices = 2;
  const int64_t before = step_of(small, 2);  // libraries, threads and buffers of a unit
  const int64_t grown = step_of(options, 2) - before;
  const auto numel = static_cast<double>((options.matrices - small.matrices) * options.width * options.width);
  return {
      {"name", choice.name}, {"parameters", numel}, {"grown_bytes_per_parameter", static_cast<double>(grown) / numel}};
}

nlohmann::json measure(const Options& options) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Choice& choice : choices()) {
    if (!options.memory.empty() && choice.name == options.memory) return measure_memory(choice, options);
    if (options.memory.empty() && choice.name.find(options.only) != std::string::npos)
      rows.push_back(compare(choice, options));
  }
  if (!options.memory.empty())
    throw std::invalid_argument("--memory: got '" + options.memory + "', expected a row's name.");
  return {{"isa", kernels::describe_cpu_isa()},
          {"threads", options.threads},
          {"elements", options.matrices * options.width * options.width},
          {"copy_of_a_byte_each_ms", copy_ms(options.matrices * options.width * options.width)},
          {"rows", rows}};
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times optimizers over flat memory, and weighs them");
  app.add_option("--rounds", options.rounds, "of which the median counts")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "of LibTorch")->check(CLI::PositiveNumber);
  app.add_option("--width", options.width, "of square matrices, a multiple of 16")->check(CLI::PositiveNumber);
  app.add_option("--matrices", options.matrices, "how many")->check(CLI::PositiveNumber);
  app.add_option("--only", options.only, "rows whose name contains this");
  app.add_option("--memory", options.memory, "weigh this row's optimizer instead");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  at::set_num_threads(options.threads);
  enable_host_cache();  // as init() does: huge pages, for the references too
  std::printf("%s\n", measure(options).dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::optimizers_program
