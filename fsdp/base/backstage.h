#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

namespace fsdp {

// What we do between a program's operators is not the program's business: no observer sees it, no graph records it, and
// tensors made here are normal ones even under InferenceMode.
struct Backstage {
  at::DisableRecordFunctionGuard no_observers;
  c10::InferenceMode normal_tensors{false};
  at::NoGradGuard no_grad;
};

}  // namespace fsdp
