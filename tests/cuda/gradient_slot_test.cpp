#include "kernels/base/gradient_slot.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include "kernels/operators/cross_entropy.h"
#include "kernels/operators/embedding.h"
#include "kernels/products/linear.h"
#include "tests/cuda/as_on_cpu.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::gradient_slot_test {
namespace {

TEST(CudaGradientSlot, StandInsAreZerosWithoutMemory) {
  FSDP_NEEDS_GPU();
  EXPECT_FALSE(is_stand_in(at::zeros({3}, kGpu)));
  const at::Tensor weight = at::ones({1000, 1000}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  at::Tensor stand_in = make_stand_in(weight);
  ASSERT_TRUE(stand_in.defined());
  EXPECT_EQ(stand_in.sizes(), weight.sizes());
  EXPECT_EQ(stand_in.device(), weight.device());
  EXPECT_TRUE(stand_in.is_contiguous());
  EXPECT_TRUE(is_stand_in(stand_in));
  EXPECT_FALSE(is_stand_in(weight));
  EXPECT_EQ(stand_in.count_nonzero().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(stand_in + weight, weight));
  // A larger one reads as zeros to its end, and is no memory of the allocator's.
  const at::Tensor large = at::empty({1}, kGpu).expand({int64_t{1} << 28});
  const auto before = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
  stand_in = make_stand_in(large);
  EXPECT_EQ(c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current, before);
  EXPECT_EQ(stand_in.narrow(0, stand_in.numel() - 5, 5).abs().sum().item<float>(), 0);
}

// What autograd does to a gradient on its way into a leaf.
TEST(CudaGradientSlot, StandInsReachTheLeaf) {
  FSDP_NEEDS_GPU();
  const at::Tensor x = at::randn({4, 16}, kGpu), weight = at::randn({8, 16}, kGpu).requires_grad_();
  const SlotOwner owner(weight, at::empty({8, 16}, kGpu), false, 1);
  kernels::linear(x, weight).sum().backward();
  EXPECT_TRUE(is_stand_in(weight.grad()));
}

// What lies in the slot after a backward, against the gradient that is returned without one.
void expect_same_in_slot(const Differentiable& function, const at::Tensor& weight_values, const std::string& label) {
  const at::Tensor weight = weight_values.to(kGpu).requires_grad_();
  const auto backward = [&] {
    const at::Tensor y = function({weight});
    y.backward(at::linspace(-1, 1, y.numel(), at::kFloat).cos().view(y.sizes()).to(y.dtype()).to(kGpu));
  };
  backward();
  const at::Tensor gradient = weight.grad().to(at::kFloat).cpu();
  for (const bool adds : {false, true}) {
    for (const double scale : {1.0, 1.0 / 3}) {
      const at::Tensor target = at::full(weight.sizes(), 0.25F, at::TensorOptions(kGpu).dtype(at::kFloat));
      if (!adds) target.fill_(NAN);  // worthless
      const SlotOwner owner(weight, target, adds, scale);
      weight.mutable_grad().reset();
      backward();
      EXPECT_LE(relative_difference(target.cpu(), gradient * scale + (adds ? 0.25 : 0)),
                tolerance_of(weight.scalar_type()))
          << label << (adds ? ", added" : "") << ", scale " << scale;
      EXPECT_TRUE(is_stand_in(weight.grad())) << label;
    }
  }
}

TEST(CudaGradientSlot, IsFilled) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 3, 65, 200}) {
      for (const int64_t width : {16, 20, 1}) {
        const at::Tensor x = values({2, tokens, width}, dtype).to(kGpu);
        const at::Tensor ids = at::randint(0, 30, {2, tokens}, at::kLong).to(kGpu), targets = ids.flatten();
        const std::string label = c10::str(dtype, ", ", tokens, " tokens of ", width);
        expect_same_in_slot([&](const Inputs& in) { return kernels::linear(x, in[0]); }, values({30, width}, dtype),
                            "linear, " + label);
        expect_same_in_slot([&](const Inputs& in) { return kernels::embedding(in[0], ids); },
                            values({30, width}, dtype), "embedding, " + label);
        expect_same_in_slot([&](const Inputs& in) { return linear_cross_entropy(x.flatten(0, 1), in[0], targets); },
                            values({30, width}, dtype), "linear_cross_entropy, " + label);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::gradient_slot_test
