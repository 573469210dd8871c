// The constants of one optimizer step, ready for a kernel of any device: no LibTorch, so that device code can include
// it.
#pragma once

namespace fsdp::kernels {

struct AdamWFactors {
  float keep;  // 1 - lr * wd
  float beta1;
  float rest1;  // 1 - beta1
  float beta2;
  float rest2;
  float step_size;   // lr / (1 - beta1^n)
  float root_scale;  // 1 / sqrt(1 - beta2^n)
  float eps;
  float gradient;
};

struct SGDFactors {
  float lr;
  float momentum;
  float keep;  // what a gradient adds to the buffer
  float weight_decay;
  float look_ahead;  // momentum for Nesterov's form
  float gradient;
};

}  // namespace fsdp::kernels
