// Whole training runs of the unsharded model against Hugging Face's curves: what every sharded run must reproduce too.
// What a step is and how close it must come: README of the golden set.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "io/base/json.h"
#include "kernels/operators/cross_entropy.h"
#include "tests/models/golden.h"

namespace fsdp::models::golden_curve_test {
namespace {

using nlohmann::json;

double learning_rate(const json& hyper, int64_t step) {
  const double highest = hyper["lr_max"], lowest = highest * hyper["lr_min_ratio"].get<double>();
  const double n = static_cast<double>(step + 1), warmup = hyper["warmup"], steps = hyper["steps"];
  if (n <= warmup) return highest * n / warmup;
  const double progress = (n - warmup) / (steps - warmup);
  return lowest + 0.5 * (highest - lowest) * (1 + std::cos(std::numbers::pi * progress));
}

torch::optim::AdamW make_optimizer(Decoder& model, const json& hyper) {
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : model->parameters())
    (parameter.dim() >= hyper["decay_min_ndim"].get<int64_t>() ? decayed : others).push_back(parameter);
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions()
                                                            .betas({hyper["betas"][0], hyper["betas"][1]})
                                                            .eps(hyper["eps"])
                                                            .weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(hyper["weight_decay"]));
  groups.emplace_back(others, options(0));
  return torch::optim::AdamW(groups, torch::optim::AdamWOptions());
}

struct Curve {
  std::vector<double> loss, grad_norm;
};

struct Mode {
  int64_t parts = 1;
  at::ScalarType compute = at::kFloat;
};

// One forward and backward of `part` through a copy of `master` in the compute dtype; adds to master's fp32 gradients.
double accumulate(Decoder& master, Decoder& model, const at::Tensor& part, const Mode& mode) {
  {
    at::NoGradGuard no_grad;
    const auto from = master->parameters(), to = model->parameters();
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
  model->zero_grad();
  const at::Tensor ids = part.slice(1, 0, -1), targets = part.slice(1, 1).contiguous();
  const at::Tensor loss = kernels::cross_entropy(model->forward(ids).flatten(0, 1), targets.flatten()) / mode.parts;
  loss.backward();
  const auto from = model->parameters(), to = master->parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    const at::Tensor gradient = from[i].grad().to(at::kFloat);
    to[i].mutable_grad() = to[i].grad().defined() ? to[i].grad() + gradient : gradient.clone();
  }
  return loss.item<double>();
}

Curve train(Decoder& master, const at::Tensor& tokens, const json& hyper, const Mode& mode) {
  Decoder model(master->config(), at::TensorOptions().dtype(mode.compute));
  torch::optim::AdamW optimizer = make_optimizer(master, hyper);
  Curve curve;
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate(hyper, step));
    optimizer.zero_grad();
    double loss = 0;
    for (const at::Tensor& part : tokens[step].to(at::kLong).chunk(mode.parts))
      loss += accumulate(master, model, part, mode);
    curve.loss.push_back(loss);
    curve.grad_norm.push_back(torch::nn::utils::clip_grad_norm_(master->parameters(), hyper["clip"].get<double>()));
    optimizer.step();
  }
  return curve;
}

class GoldenCurve : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    const json file = io::read_json_file(GetParam() / "curve.json");
    hyper_ = file["hyper"];
    curves_ = file["curves"];
    tokens_ = read_tensors(GetParam() / "tokens.safetensors").at("tokens");
    model_ = load_golden(GetParam().parent_path().parent_path() / "models" / GetParam().filename());
  }

  json hyper_, curves_;
  at::Tensor tokens_;
  Decoder model_{nullptr};
};

TEST_P(GoldenCurve, Fp32) {
  for (const auto& [name, parts] : {std::pair<const char*, int64_t>{"fp32_accumulate_2x4", 2}, {"fp32", 1}}) {
    SetUp();
    const Curve curve = train(model_, tokens_, hyper_, {parts, at::kFloat});
    const json& expected = curves_[name];
    for (size_t step = 0; step < curve.loss.size(); ++step) {
      EXPECT_NEAR(curve.loss[step], expected["loss"][step].get<double>(), 5e-5) << name << " step " << step;
      EXPECT_NEAR(curve.grad_norm[step] / expected["grad_norm"][step].get<double>(), 1, 5e-5)
          << name << " step " << step;
      EXPECT_NEAR(learning_rate(hyper_, static_cast<int64_t>(step)) / expected["lr"][step].get<double>(), 1, 1e-12);
    }
  }
  double difference = 0, size = 0;
  const Tensors final_weights = read_tensors(GetParam() / "final.safetensors");
  for (const auto& parameter : model_->named_parameters()) {
    const at::Tensor& expected = final_weights.at(parameter.key());
    EXPECT_LE(largest_difference(parameter.value(), expected), 1e-3) << parameter.key();
    difference += (parameter.value().detach() - expected).to(at::kDouble).pow(2).sum().item<double>();
    size += expected.to(at::kDouble).pow(2).sum().item<double>();
  }
  EXPECT_LE(std::sqrt(difference / size), 5e-5);
}

TEST_P(GoldenCurve, Bf16) {
  for (const auto& [name, parts] : {std::pair<const char*, int64_t>{"bf16_ranks_1", 1}, {"bf16_ranks_4", 4}}) {
    SetUp();
    const Curve curve = train(model_, tokens_, hyper_, {parts, at::kBFloat16});
    const json& expected = curves_["bf16_ranks_1"];
    double total = 0;
    for (size_t step = 0; step < curve.loss.size(); ++step) {
      const double gap = std::abs(curve.loss[step] - expected["loss"][step].get<double>());
      EXPECT_LE(gap, step == 0 ? 3e-3 : 3e-2) << name << " step " << step;
      EXPECT_NEAR(curve.grad_norm[step] / expected["grad_norm"][step].get<double>(), 1, 5e-2)
          << name << " step " << step;
      total += gap;
    }
    EXPECT_LE(total / static_cast<double>(curve.loss.size()), 6e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCurve, testing::ValuesIn(golden_folders("curves", "curve.json")),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace fsdp::models::golden_curve_test
