#include "fsdp/optim/newton_schulz.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace fsdp {
namespace {

constexpr OddQuintic kNewtonSchulz{3.4445, -4.7750, 2.0315};

// Published optima for singular values from 1e-3 on; the last one repeats.
constexpr std::array<OddQuintic, 8> kPolarExpress = {{
    {8.28721201814563, -23.595886519098837, 17.300387312530933},
    {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
    {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
    {3.3184196573706015, -2.488488024314874, 0.51004894012372},
    {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
    {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
    {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
    {1.875, -1.25, 0.375},
}};
constexpr double kMargin = 1.01;  // of all but the last: singular values that rounding makes larger than 1 stay bounded

}  // namespace

std::vector<OddQuintic> quintics(OrthogonalizeBy by, int steps) {
  const auto count = static_cast<size_t>(std::max(steps, 1));
  if (by == OrthogonalizeBy::kNewtonSchulz) return std::vector<OddQuintic>(count, kNewtonSchulz);
  std::vector<OddQuintic> list;
  for (size_t i = 0; i < count; ++i) {
    OddQuintic quintic = kPolarExpress[std::min(i, kPolarExpress.size() - 1)];
    if (i + 1 < kPolarExpress.size()) {
      quintic = {quintic.a / kMargin, quintic.b / std::pow(kMargin, 3), quintic.c / std::pow(kMargin, 5)};
    }
    list.push_back(quintic);
  }
  return list;
}

at::Tensor orthogonalize(const at::Tensor& matrix, const std::vector<OddQuintic>& iterations, double eps,
                         at::ScalarType dtype) {
  const bool is_tall = matrix.size(0) > matrix.size(1);  // then its transpose, whose square is smaller
  at::Tensor x = matrix.to(dtype);
  if (is_tall) x = x.t();
  x = x / x.norm().clamp_min(eps);
  for (const OddQuintic& quintic : iterations) {
    const at::Tensor gram = x.mm(x.t());
    const at::Tensor square = at::addmm(gram, gram, gram, /*beta=*/quintic.b, /*alpha=*/quintic.c);
    x = at::addmm(x, square, x, /*beta=*/quintic.a);
  }
  return is_tall ? x.t() : x;
}

}  // namespace fsdp
