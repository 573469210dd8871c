#include "train/base/determinism.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace fsdp::train {

void compute_deterministically() {
  constexpr int kKeep = 0;  // what somebody has set on purpose
  // MKL: the same kernel whatever the alignment of memory. cuBLAS: one workspace per stream.
  setenv("MKL_CBWR", "AUTO", kKeep);
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", kKeep);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // costs a pass over each tensor; nothing reads such memory
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace fsdp::train
