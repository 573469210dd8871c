#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp {

// What one iteration does to every singular value x of a matrix: a x + b x^3 + c x^5.
struct OddQuintic {
  double a;
  double b;
  double c;
};

// Which iterations bring singular values from (0, 1] to about 1.
enum class OrthogonalizeBy {
  kNewtonSchulz,  // the same quintic each time: to between 0.7 and 1.2 in 5 iterations. After: Jordan 2024, torch's
                  // Muon
  kPolarExpress,  // for each iteration the quintic that is best for what the ones before left over: nearer to 1, and
                  // ever nearer. After: Amsel et al. 2025, with its margin for bf16
};

// Of `steps` iterations, at least 1.
std::vector<OddQuintic> quintics(OrthogonalizeBy by, int steps);

// U V' of `matrix` [rows, cols] = U S V', about: divided by its 2-norm (at least eps), then one iteration for each
// quintic, in `dtype`. Returns [rows, cols] of that dtype. Local.
at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<OddQuintic>& iterations, double eps,
                         at::ScalarType dtype);

}  // namespace fsdp
