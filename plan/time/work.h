#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp::plan::time {

// Element types in which products are computed.
enum class Dtype { kFp32, kBf16, kFp8 };
std::string_view name(Dtype dtype);  // "fp32", "bf16", "fp8"
int64_t element_bytes(Dtype dtype);

// Gradients of weights can be computed later than the rest of a backward.
enum class ProductOf { kAnything, kWeightGradient };

// [m, k] times [k, n], `count` of them one after the other.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 1;
  ProductOf of = ProductOf::kAnything;

  double flops() const;  // 2 m n k count
};

// What one rank computes in one go, by what limits it.
struct Work {
  std::vector<Product> products;
  // Fused attention: operations of the two products of a forward that a causal mask leaves, and those of a backward
  // (2.5 times as many: it computes the scores once more).
  double attention_forward_flops = 0;
  double attention_backward_flops = 0;
  double attention_forward_rows = 0;  // queries of heads
  double attention_backward_rows = 0;
  // The same with a mask that is made, whose operations are all counted.
  double masked_forward_flops = 0;
  double masked_backward_flops = 0;
  double bytes = 0;     // that everything else reads and writes
  int64_t kernels = 0;  // launches of everything else: operators
  // All-gathers and reduce-scatters of activations, for which the computation waits: StepWork::tensor_bytes over the
  // ranks that share a layer, StepWork::context_bytes over those that share sequences.
  int64_t tensor_calls = 0;
  int64_t context_calls = 0;
  // In a ring, which the computation hides as far as attention goes: rounds of all keys and values, and of their
  // gradients.
  int64_t ring_rounds = 0;
  int64_t ring_gradient_rounds = 0;
  int64_t small_calls = 0;   // of a few numbers, among the same ranks as tensor_calls, or as expert_calls
  int64_t expert_calls = 0;  // exchanges of StepWork::expert_bytes over the ranks that have all experts among them

  double product_flops() const;
  Work& operator+=(const Work& other);
};

}  // namespace fsdp::plan::time
