// The constants of one optimizer step, ready for a kernel of any device: no LibTorch, so that device code can include
// it.
#pragma once

namespace fsdp::kernels {

template <class Number>
struct AdamWFactorsOf {
  Number keep;  // 1 - lr * wd
  Number beta1;
  Number rest1;  // 1 - beta1
  Number beta2;
  Number rest2;
  Number step_size;   // lr / (1 - beta1^n)
  Number root_scale;  // 1 / sqrt(1 - beta2^n)
  Number eps;
  Number gradient;
};

template <class Number>
struct SGDFactorsOf {
  Number lr;
  Number momentum;
  Number keep;  // what a gradient adds to the buffer
  Number weight_decay;
  Number look_ahead;  // momentum for Nesterov's form
  Number gradient;
};

template <class Number>
struct LionFactorsOf {
  Number keep;  // 1 - lr * wd
  Number lr;
  Number beta1;
  Number rest1;  // 1 - beta1
  Number beta2;
  Number rest2;
  Number gradient;
};

template <class Number>
struct ScheduleFreeFactorsOf {
  Number beta2;
  Number rest2;       // 1 - beta2
  Number root_scale;  // 1 / sqrt(1 - beta2^n)
  Number eps;
  Number weight_decay;
  Number share;      // of this step in the average
  Number lr;         // of the iterate
  Number weight_lr;  // of the weight: lr * (1 - beta1 * (1 - share))
  Number gradient;
};

using AdamWFactors = AdamWFactorsOf<float>;
using SGDFactors = SGDFactorsOf<float>;
using LionFactors = LionFactorsOf<float>;
using ScheduleFreeFactors = ScheduleFreeFactorsOf<float>;

}  // namespace fsdp::kernels
