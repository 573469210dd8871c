#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Modules by what they compute, those derived from LibTorch's own included; in TorchScript by the name of their class.
enum class ModuleKind { kBatchNorm, kInstanceNorm, kGroupNorm, kLayerNorm };

// Element types of one parameter group. Main weights keep the dtype the parameters had when they were sharded (fp32 as
// a rule).
struct Precision {
  std::optional<at::ScalarType> param = {};  // gathered and computed with; unset: the parameters' own dtype
  // kFloat8_e4m3fn: weights that fsdp::fp8() gave a recipe with the same blocks in forward and backward (tensorwise,
  // blockwise) travel as fp8 numbers, half the bytes of bf16, with the same results: a product would have rounded them
  // to these numbers anyway. What else reads such a weight gets them too. The ranks agree on the scales of all units in
  // one small collective after each optimizer step. Call fp8() first; other weights travel as they are computed with,
  // as all do where it is unset. CPU.
  std::optional<at::ScalarType> gather = {};
  std::optional<at::ScalarType> reduce = {};  // gradients on the wire; unset: the parameters' own dtype
  // Unsharded sums of gradients that wait for a later microbatch (no_sync, ZeRO-0 and ZeRO-1); unset: the parameters'
  // own dtype.
  std::optional<at::ScalarType> accumulate = {};
  // What leaves have as .grad, in which sharded sums of microbatches wait; unset: the parameters' own dtype. A sum over
  // the ranks is made in the parameters' own dtype and rounded when it gets there; optimizers compute in that of the
  // weights, fsdp's and those of torch::optim.
  std::optional<at::ScalarType> main_grad = {};
  // Floating-point buffers from fully_shard() on; unset: they stay. Those of nested units follow their own options,
  // those of modules in keep_fp32 stay. What is saved has the dtype they had before.
  std::optional<at::ScalarType> buffers = {};
  // For fsdp::forward() only, which sees inputs and outputs; operators are never given other tensors than the
  // program's.
  bool cast_inputs = true;                    // floating point inputs become `param`
  std::optional<at::ScalarType> output = {};  // what a floating point output becomes; unset: it stays as it is
  // The parameters of these keep their own dtype whatever `param` says: LibTorch wants weights and running statistics
  // of one dtype, and takes inputs of another. After: FSDP1, which excepts batch norms from mixed precision.
  std::vector<ModuleKind> keep_fp32 = {ModuleKind::kBatchNorm, ModuleKind::kInstanceNorm};

  static Precision fp32() { return {.param = at::kFloat, .reduce = at::kFloat, .accumulate = at::kFloat}; }
  // bf16 compute and gather; fp32 main weights and reduction (Megatron's O1).
  static Precision bf16() { return {.param = at::kBFloat16, .reduce = at::kFloat, .accumulate = at::kFloat}; }

  // fp16 compute and gather; fp32 main weights and reduction. Losses want a GradScaler (optim/grad_scaler.h). With
  // `reduce` kHalf too, half of a mean's division comes before the sum and half after it: see ReductionFactors.
  static Precision fp16() { return {.param = at::kHalf, .reduce = at::kFloat, .accumulate = at::kFloat}; }

  bool operator==(const Precision&) const = default;
};

// "fp32", "bf16", "fp16"; throws Error(kUsage) that lists the legal names.
Precision parse_precision(const std::string& name);

}  // namespace fsdp
