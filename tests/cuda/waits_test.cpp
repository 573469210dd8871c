// That no operator of the model makes the host wait for the device, in the forward or in the backward.
#include "kernels/operators/causal_attention.h"
#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/operators/rms_norm.h"
#include "kernels/operators/rope.h"
#include "kernels/operators/swiglu.h"
#include "kernels/products/linear.h"
#include "tests/cuda/as_on_cpu.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::waits_test {
namespace {

struct Weights {
  at::Tensor table_VE, norm_E, matrix_EE;
};

Weights make_weights(at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions(kGpu).dtype(dtype);
  const auto leaf = [&](at::IntArrayRef sizes) { return (0.1 * at::randn(sizes, options)).requires_grad_(); };
  return {leaf({5000, 64}), leaf({64}), leaf({64, 64})};
}

// One of everything, as a small decoder strings them together; the table is embedding and head.
at::Tensor loss_of(const Weights& w, const at::Tensor& ids_BT, const at::Tensor& targets_N, const at::Tensor& angles_TD,
                   const std::vector<int64_t>& documents, bool is_fused) {
  const at::Tensor x_BTE = rms_norm(kernels::embedding(w.table_VE, ids_BT), w.norm_E, 1e-6);
  const at::Tensor heads = kernels::linear(x_BTE, w.matrix_EE).view({2, ids_BT.size(1), 4, 16});
  const auto [q, k] = apply_rope(heads, heads.narrow(2, 0, 2), angles_TD.cos(), angles_TD.sin());
  const at::Tensor y_BTE = causal_attention(q, k, k, documents).flatten(2);
  const at::Tensor h_NE = kernels::linear(swiglu(y_BTE, x_BTE), w.matrix_EE).flatten(0, 1);
  if (is_fused) return linear_cross_entropy(h_NE, w.table_VE, targets_N);
  return cross_entropy(kernels::linear(h_NE, w.table_VE), targets_N);
}

TEST(CudaOperators, NeverWaitForTheDevice) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  const at::TensorOptions longs = at::TensorOptions(kGpu).dtype(at::kLong);
  const Weights weights = make_weights(at::kBFloat16);
  const at::Tensor ids_BT = at::randint(0, 5000, {2, 40}, longs), targets_N = at::randint(0, 5000, {80}, longs);
  const at::Tensor angles_TD = at::randn({40, 16}, weights.norm_E.options().requires_grad(false));
  const SlotOwner owner(weights.matrix_EE, at::zeros({64, 64}, at::TensorOptions(kGpu).dtype(at::kFloat)), true, 0.5);
  for (const bool is_fused : {false, true}) {
    for (const auto& documents : std::vector<std::vector<int64_t>>{{}, {30, 10, 40}}) {
      const auto step = [&] { loss_of(weights, ids_BT, targets_N, angles_TD, documents, is_fused).backward(); };
      step();  // libraries and stand-ins may wait when they are used for the first time
      const NoWaits no_waits;
      step();
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::waits_test
