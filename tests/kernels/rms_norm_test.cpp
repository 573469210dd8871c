#include "kernels/rms_norm.h"

#include <ATen/record_function.h>

#include "tests/kernels/compare.h"

namespace fsdp::kernels {
namespace {

// As in Hugging Face's LlamaRMSNorm.
at::Tensor reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps)).to(x.scalar_type());
}

TEST(RmsNorm, EqualsComposite) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {1, 8}, {3, 5}, {2, 7, 16}, {1, 3, 33}, {40, 64}, {5, 2, 250}, {200, 512}, {0, 8}, {2, 0, 8}}) {
      const int64_t width = shape.back();
      expect_same([](const Inputs& in) { return rms_norm(in[0], in[1], 1e-5); },
                  [](const Inputs& in) { return reference(in[0], in[1], 1e-5); },
                  {values(shape, dtype), 1 + 0.1 * values({width}, dtype)}, tolerance_of(dtype),
                  c10::str(dtype, " ", shape));
    }
  }
}

TEST(RmsNorm, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_same([](const Inputs& in) { return rms_norm(in[0].transpose(0, 1), in[1].slice(0, 0, 40, 2), 1e-6); },
                [](const Inputs& in) { return reference(in[0].transpose(0, 1), in[1].slice(0, 0, 40, 2), 1e-6); },
                {values({3, 9, 20}, dtype), values({40}, dtype)}, tolerance_of(dtype), c10::str(dtype));
  }
}

TEST(RmsNorm, DoesNotDependOnThreads) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({999, 65}), weight = at::randn({65});
  const int threads = at::get_num_threads();
  std::vector<Inputs> results;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const at::Tensor a = x.detach().requires_grad_(), w = weight.detach().requires_grad_();
    rms_norm(a, w, 1e-6).pow(2).sum().backward();
    results.push_back({a.grad(), w.grad()});
  }
  at::set_num_threads(threads);
  for (const Inputs& result : results) {
    EXPECT_TRUE(at::equal(result[0], results[0][0]));
    EXPECT_TRUE(at::equal(result[1], results[0][1]));
  }
}

std::vector<std::string>& seen() {
  static std::vector<std::string> names;
  return names;
}
const void* watched = nullptr;

std::unique_ptr<at::ObserverContext> note_reads(const at::RecordFunction& record) {
  for (const c10::IValue& value : record.inputs())
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl() == watched)
      seen().emplace_back(record.name());
  return nullptr;
}

// Touch-driven sharding rests on this: whoever reads a weight does so through an operator that gets the weight itself.
TEST(RmsNorm, ObserversSeeTheWeightInForwardAndBackward) {
  const at::Tensor x = at::randn({4, 8}).requires_grad_(), weight = at::ones({8}).requires_grad_();
  watched = weight.unsafeGetTensorImpl();
  seen().clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note_reads).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  at::Tensor y = rms_norm(x, weight, 1e-6);
  const size_t in_forward = seen().size();
  y.sum().backward();
  at::removeCallback(handle);
  ASSERT_GE(in_forward, 1u);
  EXPECT_EQ(seen().front(), "fsdp::rms_norm");
  EXPECT_EQ(
      std::count(seen().begin() + static_cast<std::ptrdiff_t>(in_forward), seen().end(), "fsdp::rms_norm_backward"), 1);
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  EXPECT_THROW(rms_norm(at::ones({2, 3}), at::ones({4}), 1e-6), c10::Error);
  EXPECT_THROW(rms_norm(at::ones({2, 3}), at::ones({3}, at::kBFloat16), 1e-6), c10::Error);
  EXPECT_THROW(rms_norm(at::ones({2, 3}, at::kDouble), at::ones({3}, at::kDouble), 1e-6), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels
