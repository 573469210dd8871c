// What the factors of a weight's products needed in earlier steps: scales that are known before the numbers are.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fsdp::kernels {

// The factors that have one; weights are scaled by their own numbers.
enum class Fp8Seen : size_t { kActivations, kGradients };

// Of one weight of recipe kDelayed. Codes are exponents + 128, so that the larger is of larger numbers; 0: only zeros,
// or nothing, was seen. Marking is thread-safe, everything else is for between steps.
class Fp8History {
 public:
  static constexpr size_t kSteps = 16;
  using Codes = std::array<uint8_t, 2>;  // by Fp8Seen

  // Of the scale to use: the largest of the last steps.
  uint8_t code(Fp8Seen factor) const;
  // A factor of this step needed that.
  void see(Fp8Seen factor, uint8_t code);

  Codes seen() const { return {seen_[0].load(), seen_[1].load()}; }
  void forget_seen();
  // A step is over, in which the ranks saw that at most.
  void push(const Codes& codes);
  const std::array<Codes, kSteps>& steps() const { return steps_; }  // the newest first
  void restore(const std::array<Codes, kSteps>& steps) { steps_ = steps; }

 private:
  std::array<std::atomic<uint8_t>, 2> seen_{};
  std::array<Codes, kSteps> steps_{};
};

// Made at the first call for a weight. Thread-safe.
std::shared_ptr<Fp8History> fp8_history_of(const at::Tensor& weight);

}  // namespace fsdp::kernels
