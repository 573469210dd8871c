#include "kernels/operators/causal_attention.h"

#include <ATen/record_function.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::causal_attention_test {
namespace {

struct Case {
  int64_t rows, length, heads, key_heads, dim;
  std::vector<int64_t> documents;
  int64_t window = 0;
};

Inputs inputs_of(const Case& c, at::ScalarType dtype) {
  const std::vector<int64_t> keys = {c.rows, c.length, c.key_heads, c.dim};
  return {2 * values({c.rows, c.length, c.heads, c.dim}, dtype), values(keys, dtype), values(keys, dtype)};
}

// Against the CPU without a look at the bits of a second run: the backward of cuDNN and flash attention may differ.
void expect_near_cpu(const Case& c, at::ScalarType dtype) {
  const Differentiable attend = [&](const Inputs& in) {
    return causal_attention(in[0], in[1], in[2], c.documents, c.window);
  };
  const Inputs inputs = inputs_of(c, dtype);
  const Inputs expected = run_on(at::kCPU, attend, inputs), actual = run_on(kGpu, attend, inputs);
  for (size_t i = 0; i < actual.size(); ++i) {
    // bf16: the probabilities are rounded before they meet the values, which the CPU's are not. Where a query sees one
    // key, the gradients of both are 0 but for rounding.
    const double tolerance = dtype == at::kBFloat16 ? 3e-2 : c.window == 1 ? 2e-3 : 1e-4;
    EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance)
        << dtype << " T=" << c.length << " D=" << c.dim << " window=" << c.window << " result " << i;
  }
}

TEST(CudaCausalAttention, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : std::vector<Case>{{1, 1, 1, 1, 2, {}},
                                           {2, 5, 4, 2, 10, {}},
                                           {1, 64, 2, 1, 16, {}},
                                           {2, 65, 3, 3, 18, {}},
                                           {1, 200, 6, 2, 64, {}},
                                           {2, 512, 16, 4, 128, {}},
                                           {0, 4, 2, 1, 8, {}},
                                           {2, 0, 2, 1, 8, {}}}) {
      expect_near_cpu(c, dtype);
    }
  }
}

TEST(CudaCausalAttention, DocumentsAndWindowsEqualCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t window : {0, 1, 2, 17, 64, 1000}) {
      expect_near_cpu({1, 40, 4, 2, 8, {17, 1, 22}, window}, dtype);
      expect_near_cpu({2, 70, 2, 2, 24, {70, 69, 1}, window}, dtype);
      expect_near_cpu({1, 150, 8, 2, 64, {63, 65, 22}, window}, dtype);
      expect_near_cpu({2, 130, 4, 1, 128, {}, window}, dtype);
    }
  }
}

std::vector<std::string>& seen() {
  static std::vector<std::string> names;
  return names;
}

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& record) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  seen().emplace_back(record.name());
  return nullptr;
}

bool saw(const std::string& part) {
  return std::any_of(seen().begin(), seen().end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

// Forward and backward, of what a 3B model asks for.
TEST(CudaCausalAttention, GoesToCudnnOnHopperAndToFlashForDocuments) {
  FSDP_NEEDS_GPU();
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  const auto run = [](const std::vector<int64_t>& documents, int64_t window) {
    seen().clear();
    const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    run_on(
        kGpu, [&](const Inputs& in) { return causal_attention(in[0], in[1], in[2], documents, window); },
        inputs_of({1, 1024, 16, 4, 128, {}}, at::kBFloat16));
    at::removeCallback(handle);
  };
  run({}, 0);
  EXPECT_TRUE(saw("fsdp::causal_attention"));
  if (major >= 9) {
    EXPECT_TRUE(saw("aten::_scaled_dot_product_cudnn_attention"));
    EXPECT_TRUE(saw("aten::_scaled_dot_product_cudnn_attention_backward"));
  }
  EXPECT_FALSE(saw("_scaled_dot_product_attention_math"));
  for (const int64_t window : {0, 256}) {
    run({1000, 24}, window);
    EXPECT_TRUE(saw("aten::_flash_attention_forward"));
    EXPECT_TRUE(saw("aten::_flash_attention_backward"));
  }
}

TEST(CudaCausalAttention, RefusesWhatDoesNotFit) {
  FSDP_NEEDS_GPU();
  const at::Tensor q = at::ones({1, 6, 4, 8}, kGpu), k = at::ones({1, 6, 2, 8}, kGpu);
  EXPECT_THROW(causal_attention(q, k.cpu(), k), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k, {2, 3}), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k, {}, -1), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::causal_attention_test
