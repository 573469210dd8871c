#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace fsdp {

// Element types of one parameter group. Main weights, their gradients and the optimizer state keep the dtype the
// parameters had when they were sharded (fp32 as a rule).
struct Precision {
  std::optional<at::ScalarType> param;   // gathered and computed with; unset: the parameters' own dtype
  std::optional<at::ScalarType> reduce;  // gradients on the wire; unset: the parameters' own dtype
  // Unsharded sums of gradients that wait for a later microbatch (no_sync, ZeRO-0 and ZeRO-1); unset: the parameters'
  // own dtype. Sharded sums always have the parameters' own dtype, which is what optimizers expect of a gradient.
  std::optional<at::ScalarType> accumulate;
  // For fsdp::forward() only, which sees inputs and outputs; operators are never given other tensors than the
  // program's.
  bool cast_inputs = true;               // floating point inputs become `param`
  std::optional<at::ScalarType> output;  // what a floating point output becomes; unset: it stays as it is

  static Precision fp32() { return {at::kFloat, at::kFloat, at::kFloat, true, {}}; }
  // bf16 compute and gather; fp32 main weights and reduction (Megatron's O1).
  static Precision bf16() { return {at::kBFloat16, at::kFloat, at::kFloat, true, {}}; }

  bool operator==(const Precision&) const = default;
};

// "fp32", "bf16"; throws Error(kUsage) that lists the legal names.
Precision parse_precision(const std::string& name);

}  // namespace fsdp
