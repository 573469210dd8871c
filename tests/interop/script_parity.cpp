// TorchScript files of others, sharded over 2 and 3 ranks with ZeRO-2 and ZeRO-3, against the unsharded module:
//   script_parity FILE...        (files of tests/interop/torchscript_files.py)
// For each file: how far losses and the changes of weights are apart after two steps. Ends with 0 if all are near.
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp::script_parity {
namespace {

constexpr int64_t kRows = 6;  // of all ranks together
constexpr int kSteps = 2;
constexpr double kRate = 0.01;
// fp32, whose sums are made in another order; changes of weights are compared with the largest of their tensor.
constexpr double kLossTolerance = 1e-4, kChangeTolerance = 1e-2;

struct File {
  std::string path;
  nlohmann::json input;

  torch::jit::Module load() const {
    torch::jit::Module module = torch::jit::load(path);
    module.eval();
    return module;
  }
  torch::Tensor rows(uint64_t seed) const {
    std::vector<int64_t> sizes = {kRows};
    for (const int64_t size : input.at("sizes")) sizes.push_back(size);
    const auto generator = testing::generator(seed);
    if (input.at("kind") == "ids") {
      return torch::randint(input.at("vocab").get<int64_t>(), sizes, generator, torch::kLong);
    }
    return torch::randn(sizes, generator);
  }
};

File read_file(const std::string& path) {
  torch::jit::ExtraFilesMap extra = {{"input", ""}};
  torch::jit::load(path, at::kCPU, extra);
  return {path, nlohmann::json::parse(extra.at("input"))};
}

std::vector<torch::Tensor> parameters_of(const torch::jit::Module& module) {
  std::vector<torch::Tensor> list;
  for (const torch::Tensor& parameter : module.parameters()) list.push_back(parameter);
  return list;
}

torch::Tensor loss_of(torch::jit::Module& module, const torch::Tensor& rows) {
  return module.forward({rows}).toTensor().square().mean();
}

// What both are compared by.
struct Outcome {
  std::vector<double> losses;
  std::map<std::string, torch::Tensor> weights;
};

Outcome train_whole(const File& file) {
  torch::jit::Module module = file.load();
  torch::optim::SGD optimizer(parameters_of(module), kRate);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const torch::Tensor loss = loss_of(module, file.rows(static_cast<uint64_t>(step)));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    outcome.losses.push_back(loss.item<double>());
  }
  for (const auto& item : module.named_parameters()) outcome.weights[item.name] = item.value.detach();
  return outcome;
}

Outcome train_sharded(const File& file, const World& world, Strategy strategy) {
  torch::jit::Module module = file.load();
  int64_t numel = 0;
  for (const torch::Tensor& parameter : module.parameters()) numel += parameter.numel();
  ShardOptions options;
  options.strategy = strategy;
  const Unit root = shard_where(module, script_by_size(numel / 10), Mesh::shard(world), options);
  SGD optimizer(parameters(module), {.lr = kRate});
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const int64_t share = kRows / world.size;
    const torch::Tensor rows = file.rows(static_cast<uint64_t>(step)).narrow(0, world.rank * share, share);
    const torch::Tensor loss = loss_of(module, rows);
    loss.backward();
    optimizer.step();
    zero_grad(module);
    outcome.losses.push_back(sum_over_ranks(world, loss.detach()).item<double>() / world.size);
  }
  outcome.weights = full_state_dict(module).tensors;
  return outcome;
}

double largest(const torch::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

// Prints how far apart they are; whether that is near.
bool compare(const std::string& what, const File& file, const Outcome& got, const Outcome& want) {
  double loss = 0, change = 0;
  for (size_t i = 0; i < want.losses.size(); ++i) {
    loss = std::max(loss, std::abs(got.losses[i] - want.losses[i]) / std::max(1e-6, std::abs(want.losses[i])));
  }
  std::string worst;
  const torch::jit::Module initial = file.load();
  double largest_change = 0;
  for (const auto& item : initial.named_parameters()) {
    largest_change = std::max(largest_change, largest(want.weights.at(item.name) - item.value.detach()));
  }
  for (const auto& item : initial.named_parameters()) {
    const torch::Tensor moved = want.weights.at(item.name) - item.value.detach();
    // Below the rounding of the weight nothing is to be compared, nor where the gradient is 0 but for rounding (biases
    // of keys, which a softmax does not see).
    const double scale = std::max({largest(moved), 1e-4 * largest(item.value), 1e-3 * largest_change});
    const double apart = largest(got.weights.at(item.name) - want.weights.at(item.name));
    if (scale > 0 && apart / scale > change) {
      change = apart / scale;
      worst = item.name;
    }
  }
  const bool is_near = loss <= kLossTolerance && change <= kChangeTolerance;
  std::printf("%-24s %-20s loss %.1e, weights %.1e of their change%s%s\n",
              std::filesystem::path(file.path).stem().c_str(), what.c_str(), loss, change,
              is_near ? "" : "  FAR: ", is_near ? "" : worst.c_str());
  std::fflush(stdout);
  return is_near;
}

bool compare_file(const std::string& path) {
  const File file = read_file(path);
  const Outcome want = train_whole(file);
  bool all_near = true;
  for (const int size : {2, 3}) {
    for (const Strategy strategy : {Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      Outcome got;
      testing::run_ranks(size, [&](const World& world) {
        Outcome own = train_sharded(file, world, strategy);
        if (world.rank == 0) got = std::move(own);
      });
      all_near = compare(c10::str(name(strategy), " x ", size), file, got, want) && all_near;
    }
  }
  return all_near;
}

}  // namespace
}  // namespace fsdp::script_parity

int main(int argc, char** argv) {
  at::set_num_threads(1);
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      if (!fsdp::script_parity::compare_file(argv[i])) ++failed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("%s: %s\n", argv[i], error.what());
    }
  }
  std::printf("%d of %d files equal their unsharded module\n", argc - 1 - failed, argc - 1);
  return failed == 0 && argc > 1 ? 0 : 1;
}
