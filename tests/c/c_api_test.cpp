// The C interface: a program in C trains like LibTorch alone in C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include "tests/app/command.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::c_api_test {
namespace {

using ::testing::HasSubstr;

constexpr int kRows = 8;
constexpr int kWidth = 5;
constexpr int kSteps = 6;

torch::jit::Module make_layer(const std::string& name, int64_t in, int64_t out, at::Generator generator) {
  torch::jit::Module layer(name);
  layer.register_parameter("weight", (torch::randn({out, in}, generator) * 0.4).requires_grad_(), false);
  layer.register_parameter("bias", (torch::randn({out}, generator) * 0.1).requires_grad_(), false);
  layer.define("def forward(self, x):\n  return torch.tanh(torch.linear(x, self.weight, self.bias))\n");
  return layer;
}

torch::jit::Module make_model() {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  torch::jit::Module model("Model");
  model.register_parameter("table", torch::randn({11, 6}, generator).requires_grad_(), false);
  model.register_module("first", make_layer("First", 6, 9, generator));
  model.register_module("second", make_layer("Second", 9, kWidth, generator));
  model.define(R"(
def forward(self, ids, targets):
  x = self.second.forward(self.first.forward(torch.embedding(self.table, ids)))
  return torch.mean(torch.square(x - targets))
)");
  return model;
}

// As in c_training.c.
std::vector<c10::IValue> make_batch(int step) {
  auto state = static_cast<uint32_t>(step);
  const auto next = [&] { return (state = state * 1103515245U + 12345U) >> 16; };
  torch::Tensor ids = torch::zeros({kRows}, torch::kLong);
  torch::Tensor targets = torch::zeros({kRows, kWidth});
  for (int row = 0; row < kRows; ++row) {
    ids[row] = static_cast<int64_t>(next() % 11);
    for (int i = 0; i < kWidth; ++i) targets[row][i] = static_cast<float>(next() & 0x7fffU) / 32768.0F - 0.5F;
  }
  return {ids, targets};
}

std::vector<torch::Tensor> weights_of(const torch::jit::Module& model) {
  std::vector<torch::Tensor> weights;
  for (const auto& weight : model.parameters()) weights.push_back(weight);
  return weights;
}

struct PlainStep {
  double loss;
  double norm;
};

// What the program does, with all rows at once.
std::vector<PlainStep> train_plainly(torch::jit::Module& model) {
  const std::vector<torch::Tensor> weights = weights_of(model);
  torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(0.05).weight_decay(0.01));
  std::vector<PlainStep> steps;
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor loss = model.forward(make_batch(step)).toTensor();
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(weights, 0.5);
    optimizer.step();
    optimizer.zero_grad();
    steps.push_back({loss.item<double>(), norm});
  }
  return steps;
}

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override { make_model().save(path("model.pt")); }
  std::string path(const std::string& name) const { return folder_ / name; }
  app::CommandResult run(const std::string& mode, int ranks = 2) const {
    return app::run_command({FSDP_BINARY, "launch", "--nproc", std::to_string(ranks), "--", FSDP_C_TRAINING, mode,
                             path("model.pt"), folder_ / ""});
  }

  const io::TemporaryFolder folder_;
};

// Lines "[0] step 4 loss 0.1 norm 0.2", from step `first` on.
void expect_steps(const std::string& text, const std::vector<PlainStep>& expected, int first) {
  std::istringstream stream(text);
  int next = first;
  for (std::string line; std::getline(stream, line);) {
    const size_t begin = line.find("step ");
    int step = 0;
    double loss = 0;
    double norm = 0;
    if (begin == std::string::npos) continue;
    ASSERT_EQ(std::sscanf(line.c_str() + begin, "step %d loss %lf norm %lf", &step, &loss, &norm), 3) << line;
    ASSERT_EQ(step, next++) << text;
    ASSERT_LT(static_cast<size_t>(step - first), expected.size()) << text;
    EXPECT_NEAR(loss, expected[static_cast<size_t>(step - first)].loss, 1e-5) << line;
    EXPECT_NEAR(norm, expected[static_cast<size_t>(step - first)].norm, 1e-4) << line;
  }
  EXPECT_EQ(static_cast<size_t>(next - first), expected.size()) << text;
}

TEST_F(CInterface, TrainsLikeLibTorchAlone) {
  torch::jit::Module plain = torch::jit::load(path("model.pt"));
  const std::vector<PlainStep> expected = train_plainly(plain);
  const app::CommandResult result = run("train");
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  expect_steps(result.out, expected, 1);
  const std::vector<torch::Tensor> weights = weights_of(torch::jit::load(path("trained.pt")));
  const std::vector<torch::Tensor> plain_weights = weights_of(plain);
  ASSERT_EQ(weights.size(), plain_weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(torch::allclose(weights[i], plain_weights[i], 1e-3, 1e-4)) << i;

  // Not bit for bit: TorchScript runs a graph in other ways the first times.
  const app::CommandResult resumed = run("resume");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_steps(resumed.out, {expected.begin() + 3, expected.end()}, 4);
  const std::vector<torch::Tensor> resumed_weights = weights_of(torch::jit::load(path("resumed.pt")));
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(torch::allclose(weights[i], resumed_weights[i], 1e-4, 1e-5)) << i;
}

TEST_F(CInterface, TellsMistakesAndGoesOn) {
  for (const int ranks : {1, 2}) {
    const app::CommandResult result = run("mistakes", ranks);
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    torch::jit::Module plain = torch::jit::load(path("model.pt"));
    const size_t found = result.out.find("evaluated ");
    ASSERT_NE(found, std::string::npos) << result.out;
    EXPECT_NEAR(std::stod(result.out.substr(found + 10)), plain.forward(make_batch(1)).toTensor().item<double>(), 1e-6);
  }
}

TEST_F(CInterface, TellsOfALostPeerByItsStatus) {
  const app::CommandResult result = run("leave");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("lonely: 5: [comm] rank 0: "));
  EXPECT_THAT(result.out, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace fsdp::c_api_test
