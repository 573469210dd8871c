// Optimizer steps of fp64 weights: memory is what they wait for, so plain loops do.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::raw {

// See kernels/flat/adamw.h for the formula.
inline void adamw(double* weight, const double* gradient, double* m, double* v, int64_t count,
                  const AdamWFactorsOf<double>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const double g = gradient[i] * f.gradient;
    m[i] = f.beta1 * m[i] + f.rest1 * g;
    v[i] = f.beta2 * v[i] + f.rest2 * g * g;
    weight[i] = weight[i] * f.keep - f.step_size * m[i] / (std::sqrt(v[i]) * f.root_scale + f.eps);
  }
}

// See kernels/flat/sgd.h. `buffer`: null without momentum.
inline void sgd(double* weight, const double* gradient, double* buffer, int64_t count, const SGDFactorsOf<double>& f,
                bool nesterov) {
  for (int64_t i = 0; i < count; ++i) {
    const double g = gradient[i] * f.gradient + weight[i] * f.weight_decay;
    double step = g;
    if (buffer != nullptr) {
      buffer[i] = buffer[i] * f.momentum + g * f.keep;
      step = nesterov ? g + buffer[i] * f.look_ahead : buffer[i];
    }
    weight[i] -= f.lr * step;
  }
}

// See kernels/flat/lion.h.
inline void lion(double* weight, const double* gradient, double* momentum, int64_t count,
                 const LionFactorsOf<double>& f) {
  for (int64_t i = 0; i < count; ++i) {
    const double g = gradient[i] * f.gradient, direction = f.beta1 * momentum[i] + f.rest1 * g;
    weight[i] = weight[i] * f.keep - (std::abs(direction) > 0 ? std::copysign(f.lr, direction) : direction);
    momentum[i] = f.beta2 * momentum[i] + f.rest2 * g;
  }
}

// See kernels/flat/schedule_free.h.
inline void schedule_free(double* weight, const double* gradient, double* iterate, double* squares, int64_t count,
                          const ScheduleFreeFactorsOf<double>& f, bool is_first) {
  for (int64_t i = 0; i < count; ++i) {
    const double g = gradient[i] * f.gradient, z = is_first ? weight[i] : iterate[i];
    squares[i] = f.beta2 * squares[i] + f.rest2 * g * g;
    const double direction = g / (std::sqrt(squares[i]) * f.root_scale + f.eps) + f.weight_decay * weight[i];
    weight[i] += f.share * (z - weight[i]) - f.weight_lr * direction;
    iterate[i] = z - f.lr * direction;
  }
}

}  // namespace fsdp::kernels::raw
