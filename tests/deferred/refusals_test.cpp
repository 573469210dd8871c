// What a tensor without memory cannot give is refused with a text that says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "fsdp/base/error.h"
#include "fsdp/deferred/deferred_init.h"

namespace fsdp::refusals_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;
using torch::Tensor;

template <class Body>
std::string refusal_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DeferredInitRefusals, ReadingAValueIsRefused) {
  const auto linear = deferred([] { return nn::Linear(2, 3); });
  const Tensor bias = linear->bias.detach();
  const auto reads = [](const char* name) {
    return AllOf(HasSubstr(c10::str("[deferred] aten::", name)),
                 HasSubstr("reads the values of a tensor [3] that was made under DeferredInit and has no memory yet. "
                           "Call fully_shard() or materialize() first, or make what the constructor reads on an "
                           "explicit device: torch::device(torch::kCPU)."));
  };
  EXPECT_THAT(refusal_of([&] { bias.equal(bias); }), reads("equal"));
  EXPECT_THAT(refusal_of([&] { bias.allclose(bias); }), reads("allclose"));
  EXPECT_THAT(refusal_of([&] { bias.cpu(); }), reads("to"));
  EXPECT_THAT(refusal_of([&] { std::ostringstream() << linear->bias; }), reads("to"));
  EXPECT_THAT(refusal_of([&] { bias[0].item<float>(); }), HasSubstr("aten::item reads the values of a tensor []"));
  EXPECT_THAT(refusal_of([&] { bias.sum().is_nonzero(); }), HasSubstr("aten::is_nonzero reads the values"));
  EXPECT_THAT(refusal_of([&] { bias.nonzero(); }), HasSubstr("aten::nonzero has no form without values"));
  EXPECT_TRUE(is_deferred(linear->bias));
}

TEST(DeferredInitRefusals, InAConstructorToo) {
  EXPECT_THAT(refusal_of([] { deferred([] { return torch::rand({1}).item<float>(); }); }), HasSubstr("aten::item"));
  const auto copy = [] { return torch::empty({3}, torch::device(torch::kCPU)).copy_(torch::rand({3})); };
  EXPECT_THAT(
      refusal_of([&] { deferred(copy); }),
      HasSubstr("aten::copy_ writes a tensor that has memory from a tensor [3] that was made under DeferredInit"));
}

TEST(DeferredInitRefusals, ScopesDoNotNestNorMix) {
  EXPECT_THAT(refusal_of([] { deferred([] { return deferred([] { return torch::ones({2}); }); }); }),
              HasSubstr("[deferred] a DeferredInit scope inside another one"));
  const Tensor other = deferred([] { return torch::rand({3}); });
  EXPECT_THAT(refusal_of([&] { deferred([&] { return torch::ones({3}) + other; }); }),
              HasSubstr("aten::add.Tensor computes with tensors of two DeferredInit scopes"));
}

TEST(DeferredInitRefusals, AChangedInputOfTheConstructorIsRefused) {
  const Tensor own = torch::ones({3});
  const Tensor sum = deferred([&] { return torch::rand({3}) + own; });
  own.fill_(2);
  EXPECT_THAT(refusal_of([&] { materialize({sum}); }),
              HasSubstr("a tensor [3] that a constructor computed with was changed in place"));
}

TEST(DeferredInitRefusals, ALostGradientIsRefused) {
  const auto linear = deferred([] { return nn::Linear(2, 2); });
  const Tensor weight = linear->weight.to(torch::kDouble);
  const Tensor rows = torch::ones({1, 2}, torch::kDouble);
  EXPECT_THAT(refusal_of([&] { rows.mul(weight); }), HasSubstr("which would get no gradient"));
}

}  // namespace
}  // namespace fsdp::refusals_test
