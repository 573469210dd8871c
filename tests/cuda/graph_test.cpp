// CUDA graphs of blocks of the decoder: the bits of plain calls.
#include <torch/torch.h>

#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"
#include "fsdp/graph/graphed_function.h"
#include "models/decoder_layer.h"
#include "tests/cuda/as_on_cpu.h"

namespace fsdp::graph_test {
namespace {

using kernels::kGpu;

constexpr int kSteps = 6;

models::DecoderConfig block_config() {
  models::DecoderConfig config;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  return config;
}

// Outputs, gradients of the input and weights of every step. The block is a unit whose weights are gathered.
std::vector<at::Tensor> train_block(bool is_graphed, models::Projections projections, const Precision& precision) {
  torch::manual_seed(7);
  models::DecoderLayer layer(block_config(), 0, at::TensorOptions().dtype(at::kFloat));
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : layer->parameters())
      parameter.dim() > 1 ? parameter.normal_(0, 0.05) : parameter.fill_(1);
  }
  ShardOptions options;
  options.device = kGpu;
  options.precision = precision;
  options.whole_weights = WholeWeights::kCopied;
  options.allocator = AllocatorOptions::traced();
  fully_shard(*layer, Mesh::shard(comm::connect_alone()), options);
  layer->set_projections(projections);
  AdamW optimizer(parameters(*layer), AdamWOptions{.lr = 1e-2});
  GraphedFunction graph(layer->parameters());
  const at::Tensor angles = at::arange(32 * 32, at::kFloat).view({32, 32}) / 100;
  const at::ScalarType dtype = precision.param.value_or(at::kFloat);
  const at::Tensor cos = angles.cos().to(dtype).to(kGpu), sin = angles.sin().to(dtype).to(kGpu);
  const auto call = [&layer](const std::vector<at::Tensor>& in) {
    models::AttentionInputs inputs;
    inputs.cos = in[1];
    inputs.sin = in[2];
    return std::vector<at::Tensor>{layer->forward(in[0], inputs)};
  };
  std::vector<at::Tensor> results;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = at::randn({2, 32, 128}).to(dtype).to(kGpu).requires_grad_();
    const at::Tensor y = is_graphed ? graph(call, {x, cos, sin})[0] : call({x, cos, sin})[0];
    results.push_back(y.detach().cpu());
    y.to(at::kFloat).square().mean().backward();
    results.push_back(x.grad().cpu());
    optimizer.step();
    zero_grad(*layer);
  }
  for (const at::Tensor& leaf : parameters(*layer)) results.push_back(leaf.detach().cpu());
  if (is_graphed) {
    EXPECT_EQ(graph.counters().recorded, 1);
    // Weights move once, into the memory that the first step was traced for: one call more runs as it is.
    EXPECT_GE(graph.counters().replayed, kSteps - GraphedFunction::kWarmUps - 1);
    EXPECT_EQ(graph.counters().replayed + graph.counters().eager, kSteps);
  }
  return results;
}

class CudaGraph : public ::testing::Test {
 protected:
  CudaGraph() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~CudaGraph() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

TEST_F(CudaGraph, GivesTheBitsOfPlainCalls) {
  FSDP_NEEDS_GPU();
  for (const auto projections : {models::Projections::kSeparate, models::Projections::kFused}) {
    const auto expected = train_block(false, projections, {}), results = train_block(true, projections, {});
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(results[i], expected[i])) << i;
  }
}

// Plain calls add weights' gradients up in fp32 where they are needed; those of a recording are rounded to bf16 first.
TEST_F(CudaGraph, InBf16DiffersByARoundingOfWeightsGradients) {
  FSDP_NEEDS_GPU();
  const auto expected = train_block(false, models::Projections::kSeparate, Precision::bf16());
  const auto results = train_block(true, models::Projections::kSeparate, Precision::bf16());
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(results[i], expected[i])) << i;  // before the first update
  for (size_t i = 2; i < 4; ++i) EXPECT_LE(kernels::relative_difference(results[i], expected[i]), 5e-2) << i;
}

TEST_F(CudaGraph, RefusesWhatWaitsForTheDevice) {
  FSDP_NEEDS_GPU();
  const at::Tensor x = at::ones({4}).to(kGpu).requires_grad_();
  GraphedFunction graph({});
  const auto waits = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0] * in[0].sum().item<float>()};
  };
  for (int i = 0; i < GraphedFunction::kWarmUps; ++i) graph(waits, {x});
  EXPECT_THROW(graph(waits, {x}), Error);
  EXPECT_EQ((x + 1).sum().item<float>(), 8);  // the device works on
}

}  // namespace
}  // namespace fsdp::graph_test
