// The loss of pairs of answers: against its formula, and what PyTorch and transformers computed (make_dpo_golden.py).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/base/json.h"
#include "tests/models/golden.h"
#include "train/preference/objective.h"

namespace fsdp::train {
namespace {

TEST(Preference, LossFollowsItsFormula) {
  for (const double beta : {0.01, 0.1, 2.0}) {
    for (const double smoothing : {0.0, 0.2}) {
      for (const double difference : {-300.0, -3.0, 0.0, 0.7, 40.0}) {
        const PreferenceRule rule{beta, smoothing};
        const torch::Tensor chosen = torch::tensor(-20 + difference, torch::kDouble).requires_grad_();
        const torch::Tensor rejected = torch::tensor(-7.0, torch::kDouble).requires_grad_();
        const torch::Tensor margin = reward_margin(chosen, rejected, {-20, -7}, rule);
        const double m = beta * difference;
        EXPECT_NEAR(margin.item<double>(), m, 1e-12 * std::abs(m));
        // -log sigmoid(x) = log(1 + exp(-x)), without overflow.
        const auto softplus = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); };
        const double expected = (1 - smoothing) * softplus(-m) + smoothing * softplus(m);
        const torch::Tensor loss = preference_loss(margin, rule);
        EXPECT_NEAR(loss.item<double>(), expected, 1e-12 * expected);
        loss.backward();
        const double sigmoid = 1 / (1 + std::exp(-m));
        const double slope = beta * (-(1 - smoothing) * (1 - sigmoid) + smoothing * sigmoid);
        EXPECT_NEAR(chosen.grad().item<double>(), slope, 1e-12);
        EXPECT_NEAR(rejected.grad().item<double>(), -slope, 1e-12);
      }
    }
  }
}

constexpr int64_t kPairLength = 24;

// Both documents of each pair, and padding.
Batch batch_of(const nlohmann::json& pairs) {
  Batch batch;
  const auto rows = static_cast<int64_t>(pairs.size());
  batch.input_ids_BT = torch::zeros({rows, kPairLength}, torch::kLong);
  torch::Tensor targets = torch::full({rows, kPairLength}, kNoTarget, torch::kLong);
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t place = 0;
    for (const char* document : {"chosen", "rejected"}) {
      const auto ids = pairs[static_cast<size_t>(row)].at(document).get<std::vector<int64_t>>();
      const int64_t answer = pairs[static_cast<size_t>(row)].at("start");
      starts.push_back(static_cast<int32_t>(row * kPairLength + place));
      for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
        batch.input_ids_BT[row][place + i] = ids[static_cast<size_t>(i)];
        if (i >= answer) targets[row][place + i - 1] = ids[static_cast<size_t>(i)];
      }
      if (place == 0) batch.pairs.push_back({row, static_cast<int64_t>(ids.size()), 0});
      place += static_cast<int64_t>(ids.size());
    }
    batch.pairs.back().end = place;
    starts.push_back(static_cast<int32_t>(row * kPairLength + place));
  }
  starts.push_back(static_cast<int32_t>(rows * kPairLength));
  batch.sequence.cu_seqlens = torch::tensor(starts, torch::kInt);
  batch.targets_N = targets.flatten();
  return batch;
}

TEST(Preference, IsThatOfPyTorch) {
  const nlohmann::json golden = io::read_json_file(FSDP_TEST_DATA_DIR "/dpo.json");
  models::Decoder model =
      models::load_golden(std::string(FSDP_TEST_DATA_DIR "/models/") + golden.at("model").get<std::string>());
  const nlohmann::json& pairs = golden.at("pairs");
  const Batch batch = batch_of(pairs);
  const torch::Tensor logs = answer_logs(model, batch).detach();
  std::vector<AnswerLogs> references;
  double loss = 0, margin = 0;
  for (const nlohmann::json& pair : pairs) {
    const auto row = static_cast<int64_t>(references.size());
    for (const int64_t side : {0, 1})
      EXPECT_NEAR(logs[row][side].item<double>(), pair.at("logs").at(static_cast<size_t>(side)).get<double>(), 2e-5);
    references.push_back({pair.at("reference").at(0), pair.at("reference").at(1)});
    loss += pair.at("loss").get<double>();
    margin += pair.at("margin").get<double>();
  }
  PreferenceObjective objective;
  objective.rule = {golden.at("beta"), golden.at("label_smoothing")};
  objective.train = References(references);
  PreferenceSums sums;
  objective.loss_of(model, batch, objective.train, sums).backward();
  EXPECT_NEAR(sums.loss, loss, 1e-5);
  EXPECT_NEAR(sums.margin, margin, 1e-5);
  EXPECT_EQ(sums.pairs, 3);
  for (const auto& item : model->named_parameters()) {
    const double norm = golden.at("gradient_norms").at(item.key());
    EXPECT_NEAR(item.value().grad().norm().item<double>(), norm, 2e-5 * norm + 1e-7) << item.key();
    if (!golden.at("gradients").contains(item.key())) continue;
    const torch::Tensor expected =
        torch::tensor(golden.at("gradients").at(item.key()).get<std::vector<double>>(), torch::kDouble);
    EXPECT_LT(models::relative_difference(item.value().grad().to(torch::kDouble), expected), 2e-5) << item.key();
  }
}

}  // namespace
}  // namespace fsdp::train
