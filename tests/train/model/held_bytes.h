// What activations take between forward and backward.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <memory>

#include "models/decoder.h"

namespace fsdp::testing {

// Bytes of the CPU that this thread's tensors hold, by LibTorch's own account.
class HeldBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { held_ += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }

 private:
  int64_t held_ = 0;
};

// Token ids [rows, length] below 64.
inline at::Tensor ids_of(int64_t rows, int64_t length) {
  return (at::arange(rows * length, at::kLong) * 7919 % 64).view({rows, length});
}

// What the graph of a forward holds, and its logits.
inline int64_t bytes_of_graph(models::Decoder& decoder, const at::Tensor& ids) {
  const auto account = std::make_shared<HeldBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
  const at::Tensor logits = decoder->forward(ids);
  return account->held();
}

}  // namespace fsdp::testing
