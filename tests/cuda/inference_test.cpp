// Text, likelihoods and parity on a GPU: what the CPU says.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "fsdp/comm/connection.h"
#include "kernels/operators/cached_attention.h"
#include "tests/cuda/as_on_cpu.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/model/model_files.h"
#include "train/evaluate/likelihood.h"
#include "train/generate/generation.h"
#include "train/parity/parity.h"

namespace fsdp::train::inference_test {
namespace {

using kernels::kGpu;

// One token of rows that are equally long, several of rows that are not, rows in any order.
TEST(CudaCachedAttention, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t window : {0, 40}) {
      const at::TensorOptions options(dtype);
      const at::Tensor k_RKCW = at::randn({4, 2, 300, 64}, options), v_RKCW = at::randn_like(k_RKCW);
      const auto expect_equal = [&](int64_t tokens, const std::vector<int64_t>& rows,
                                    const std::vector<int64_t>& starts) {
        const at::Tensor q_BTHD = at::randn({static_cast<int64_t>(rows.size()), tokens, 6, 64}, options);
        const at::Tensor expected = kernels::cached_attention(q_BTHD, k_RKCW, v_RKCW, rows, starts, window);
        const at::Tensor actual =
            kernels::cached_attention(q_BTHD.to(kGpu), k_RKCW.to(kGpu), v_RKCW.to(kGpu), rows, starts, window);
        EXPECT_LE(kernels::relative_difference(actual.cpu(), expected), dtype == at::kFloat ? 1e-4 : 3e-2)
            << dtype << " window " << window << " tokens " << tokens;
      };
      expect_equal(1, {1, 2, 3}, {250, 250, 250});
      expect_equal(1, {3, 0}, {20, 299});
      expect_equal(5, {2, 0, 1}, {0, 100, 295});
    }
  }
}

std::vector<int64_t> continue_text(c10::Device device) {
  const at::NoGradGuard no_grad;
  models::Decoder decoder(small_config(), at::TensorOptions(device));
  decoder->reset_parameters(3);
  std::vector<int64_t> text;
  Generator generator(decoder, {.num_rows = 2});
  for (const int64_t length : {12, 3, 30}) {
    GenerationRequest request{
        .prompt = std::vector<int64_t>(static_cast<size_t>(length), length), .stop_ids = {}, .sampling = {}};
    request.sampling.temperature = 0;
    request.max_tokens = 20;
    request.on_token = [&text](int64_t id) {
      text.push_back(id);
      return Verdict::kContinue;
    };
    generator.add(std::move(request));
  }
  while (generator.has_work()) generator.step();
  return text;
}

TEST(CudaInference, WritesWhatTheCpuWrites) {
  FSDP_NEEDS_GPU();
  EXPECT_EQ(continue_text(kGpu), continue_text(at::kCPU));
}

TEST(CudaInference, LikelihoodsEqualThoseOfTheCpu) {
  FSDP_NEEDS_GPU();
  const io::TemporaryFolder folder;
  write_model(folder / "model", small_config(), 5);
  const std::vector<ScoredText> texts = {{{1, 2, 3, 4}, 1}, {{7, 90, 11, 200, 8, 3}, 2}};
  for (const std::string precision : {"fp32", "bf16"}) {
    InferenceModel on_cpu(folder / "model", precision, World{});
    InferenceModel on_gpu(folder / "model", precision, World{}, kGpu);
    const auto expected = log_likelihoods(on_cpu, texts, 32), found = log_likelihoods(on_gpu, texts, 32);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], (precision == "fp32" ? 1e-4 : 2e-2) * std::abs(expected[i])) << precision << i;
  }
}

TEST(CudaParity, WithTransformers) {
  FSDP_NEEDS_GPU();
  for (const char* name : {"llama3-mini", "mistral-mini", "qwen2-mini", "qwen3-mini", "smollm3-mini"}) {
    ParityOptions options;
    options.model = std::filesystem::path(FSDP_TEST_DATA_DIR) / "models" / name;
    options.expected = options.model / "expected.safetensors";
    options.packed = options.model / "packed.safetensors";
    options.device = kGpu;
    for (const ParityReport& report : check_parity(options, comm::connect_alone()))
      EXPECT_TRUE(report.passed()) << name << "\n" << to_table({report});
  }
}

}  // namespace
}  // namespace fsdp::train::inference_test
