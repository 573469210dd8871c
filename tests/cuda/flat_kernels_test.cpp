// The kernels over flat memory of a GPU against their twins on the CPU and against ATen in fp64.
#include "kernels/flat/flat_kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "fsdp/optim/block_code.h"
#include "kernels/flat/pack.h"
#include "kernels/flat/sum_chunks.h"
#include "kernels/flat/sum_squares.h"

namespace fsdp::kernels::flat_kernels_test {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kFloatTolerance = 2e-6;
constexpr std::array<at::ScalarType, 3> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};
// Around a thread's four elements and a block's.
constexpr std::array<int64_t, 7> kSizes = {0, 1, 3, 4, 7, 1023, 100'003};

// Of the same values on the CPU and on the GPU, starting `begin` elements into their memory.
struct Twins {
  at::Tensor cpu;
  at::Tensor gpu;
};

Twins twins(int64_t numel, at::ScalarType dtype = at::kFloat, int64_t begin = 0) {
  const at::Tensor cpu = at::randn({numel + begin}).to(dtype);
  return {cpu.narrow(0, begin, numel), cpu.to(at::kCUDA).narrow(0, begin, numel)};
}

// The largest difference, relative to the larger of the expected value and 1.
double difference(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  if (expected.numel() == 0) return 0;
  const at::Tensor a = actual.to(at::kCPU, at::kDouble), e = expected.to(at::kCPU, at::kDouble);
  return ((a - e).abs() / e.abs().clamp_min(1)).max().item<double>();
}

// One rounding to `dtype`.
double rounding_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : dtype == at::kHalf ? 1.1e-3 : 8e-3;
}

class CudaFlatKernels : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(7); }
};

TEST_F(CudaFlatKernels, AreLoaded) { EXPECT_NE(find_flat_kernels(c10::DeviceType::CUDA), nullptr); }

TEST_F(CudaFlatKernels, AdamWEqualsItsTwin) {
  for (const int64_t numel : kSizes) {
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(c10::str(numel, " elements, copy ", dtype));
      const Twins w = twins(numel), m = twins(numel), v = twins(numel), copy = twins(numel, dtype);
      for (const at::Tensor& each : {v.cpu, v.gpu}) at::Tensor(each).abs_().add_(0.1);  // small ones magnify rounding
      const at::Tensor none, scale = at::full({}, 0.37F, at::kFloat);
      for (int64_t step = 1; step < 4; ++step) {
        const Twins g = twins(numel);
        const bool copies = step > 1;
        AdamWStep options{1e-2, 0.9, 0.95, 1e-8, 0.1, step, 0.5, scale};
        adamw_step(w.cpu, g.cpu, m.cpu, v.cpu, copies ? copy.cpu : none, options);
        options.gradient_scale = scale.to(at::kCUDA);
        adamw_step(w.gpu, g.gpu, m.gpu, v.gpu, copies ? copy.gpu : none, options);
        if (copies) {
          EXPECT_LE(difference(copy.gpu, copy.cpu), rounding_of(dtype));
        }
      }
      EXPECT_LE(difference(w.gpu, w.cpu), kFloatTolerance);
      EXPECT_LE(difference(m.gpu, m.cpu), kFloatTolerance);
      EXPECT_LE(difference(v.gpu, v.cpu), kFloatTolerance);
    }
  }
}

TEST_F(CudaFlatKernels, AdamWEqualsATen) {
  const at::Tensor w = at::randn({10'001}, at::kCUDA), m = at::zeros_like(w), v = at::zeros_like(w),
                   copy = at::empty({10'001}, at::device(at::kCUDA).dtype(at::kBFloat16));
  const at::Tensor expected = w.clone(), em = m.clone(), ev = v.clone(), steps = at::zeros({}, at::kCUDA);
  for (int64_t step = 1; step < 6; ++step) {
    const at::Tensor g = at::randn_like(w);
    adamw_step(w, g, m, v, copy, {1e-2, 0.9, 0.95, 1e-8, 0.1, step});
    at::Tensor(steps).add_(1);
    at::_fused_adamw_({expected}, {g}, {em}, {ev}, {}, {steps}, 1e-2, 0.9, 0.95, 0.1, 1e-8, false, false);
  }
  EXPECT_LE(difference(w, expected), kFloatTolerance);
  EXPECT_TRUE(torch::equal(copy, w.to(at::kBFloat16)));
}

// Whole, and in pieces that start anywhere: the same bits.
TEST_F(CudaFlatKernels, AdamWDoesNotDependOnWhereARangeStarts) {
  const int64_t numel = 5000;
  const Tensors whole = {at::randn({numel}, at::kCUDA), at::randn({numel}, at::kCUDA), at::zeros({numel}, at::kCUDA),
                         at::zeros({numel}, at::kCUDA), at::zeros({numel}, at::kCUDA).to(at::kBFloat16)};
  Tensors cut;
  for (const at::Tensor& tensor : whole) cut.push_back(tensor.clone());
  const AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 1};
  adamw_step(whole[0], whole[1], whole[2], whole[3], whole[4], step);
  for (int64_t begin = 0; begin < numel;) {
    const int64_t count = std::min<int64_t>(1 + begin % 997, numel - begin);
    const auto part = [&](size_t i) { return cut[i].narrow(0, begin, count); };
    // One array starts elsewhere than the others: element by element.
    const at::Tensor shifted = at::empty({count + 1}, at::kCUDA).narrow(0, 1, count).copy_(part(1));
    adamw_step(part(0), begin % 2 == 0 ? part(1) : shifted, part(2), part(3), part(4), step);
    begin += count;
  }
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(cut[i], whole[i])) << i;
}

TEST_F(CudaFlatKernels, SGDEqualsItsTwin) {
  for (const int64_t numel : kSizes) {
    for (const bool nesterov : {false, true}) {
      for (const double momentum : {0.0, 0.9}) {
        if (nesterov && momentum == 0) continue;
        SCOPED_TRACE(c10::str(numel, " elements, momentum ", momentum, nesterov ? ", Nesterov" : ""));
        const Twins w = twins(numel), buffer = twins(numel), copy = twins(numel, at::kBFloat16);
        for (int step = 1; step < 4; ++step) {
          const Twins g = twins(numel);
          const auto state = momentum == 0 ? MomentumState::kNone
                             : step == 1   ? MomentumState::kFirstStep
                                           : MomentumState::kRunning;
          SGDStep options{1e-2, momentum, 0, 0.1, nesterov, state, 0.5, at::full({}, 0.37F, at::kFloat)};
          sgd_step(w.cpu, g.cpu, buffer.cpu, copy.cpu, options);
          options.gradient_scale = options.gradient_scale.to(at::kCUDA);
          sgd_step(w.gpu, g.gpu, buffer.gpu, copy.gpu, options);
        }
        EXPECT_LE(difference(w.gpu, w.cpu), kFloatTolerance);
        EXPECT_LE(difference(buffer.gpu, buffer.cpu), kFloatTolerance);
        EXPECT_LE(difference(copy.gpu, copy.cpu), rounding_of(at::kBFloat16));
      }
    }
  }
}

TEST_F(CudaFlatKernels, LionHasTheBitsOfItsTwin) {
  for (const int64_t numel : kSizes) {
    for (const auto dtype : kDtypes) {
      for (const int64_t begin : {0, 1}) {
        SCOPED_TRACE(c10::str(numel, " elements from ", begin, ", copy ", dtype));
        const Twins w = twins(numel, at::kFloat, begin), m = twins(numel), copy = twins(numel, dtype);
        const at::Tensor none;
        for (int step = 1; step < 4; ++step) {
          const Twins g = twins(numel);
          for (const at::Tensor& each : {g.cpu, g.gpu, m.cpu, m.gpu}) each.slice(0, 0, 2).zero_();  // no sign
          const bool copies = step > 1;
          LionStep options{1e-2, 0.9, 0.99, 0.1, 0.5, at::full({}, 0.37F, at::kFloat)};
          lion_step(w.cpu, g.cpu, m.cpu, copies ? copy.cpu : none, options);
          options.gradient_scale = options.gradient_scale.to(at::kCUDA);
          lion_step(w.gpu, g.gpu, m.gpu, copies ? copy.gpu : none, options);
        }
        EXPECT_TRUE(torch::equal(w.gpu.cpu(), w.cpu));
        EXPECT_TRUE(torch::equal(m.gpu.cpu(), m.cpu));
        EXPECT_TRUE(torch::equal(copy.gpu.cpu(), copy.cpu));
      }
    }
  }
}

TEST_F(CudaFlatKernels, ScheduleFreeEqualsItsTwin) {
  for (const int64_t numel : kSizes) {
    for (const auto dtype : kDtypes) {
      for (const int64_t begin : {0, 1}) {
        SCOPED_TRACE(c10::str(numel, " elements from ", begin, ", copy ", dtype));
        // What the iterate holds at first is not read.
        const Twins w = twins(numel, at::kFloat, begin), z = twins(numel), v = twins(numel), copy = twins(numel, dtype);
        for (const at::Tensor& each : {v.cpu, v.gpu}) each.abs_().add_(0.1);
        for (int64_t step = 1; step < 4; ++step) {
          const Twins g = twins(numel);
          const double share = 1.0 / static_cast<double>(step);
          ScheduleFreeStep options{1e-2, 0.9, 0.95, 1e-8, 0.1, share, step, 0.5, at::full({}, 0.37F, at::kFloat)};
          schedule_free_step(w.cpu, g.cpu, z.cpu, v.cpu, copy.cpu, options);
          options.gradient_scale = options.gradient_scale.to(at::kCUDA);
          schedule_free_step(w.gpu, g.gpu, z.gpu, v.gpu, copy.gpu, options);
        }
        EXPECT_LE(difference(w.gpu, w.cpu), kFloatTolerance);
        EXPECT_LE(difference(z.gpu, z.cpu), kFloatTolerance);
        EXPECT_LE(difference(v.gpu, v.cpu), kFloatTolerance);
        EXPECT_LE(difference(copy.gpu, copy.cpu), rounding_of(dtype));
      }
    }
  }
}

// Codes and scales as on the CPU, whose roundings the moments share; also of blocks that are short, zero, tiny or not
// finite, and of ranges that begin where four elements do not go at once.
TEST_F(CudaFlatKernels, LowBitAdamWHasTheMomentsOfItsTwin) {
  for (const BlockCode code : {BlockCode::kDynamic, BlockCode::kLinear}) {
    const auto codes_of = [&](CodeSign sign) {
      return raw::BlockCodes(code_table(code, sign).const_data_ptr<float>());
    };
    const raw::BlockCodes signed_codes = codes_of(CodeSign::kSigned), unsigned_codes = codes_of(CodeSign::kUnsigned);
    for (const int64_t numel : {0, 1, 5, 255, 256, 257, 2303, 100'003}) {
      for (const auto dtype : kDtypes) {
        for (const int64_t begin : {0, 1}) {
          SCOPED_TRACE(c10::str(numel, " elements from ", begin, ", copy ", dtype));
          const int64_t blocks = (numel + kMomentBlock - 1) / kMomentBlock;
          const Twins w = twins(numel, at::kFloat, begin), copy = twins(numel, dtype);
          const at::Tensor zeros = at::zeros({numel}, at::kByte), none = at::zeros({blocks});
          const auto moment = [&](at::DeviceType device, const raw::BlockCodes& table) {
            return CodedMoment{zeros.to(device, at::kByte, false, true), none.to(device, at::kFloat, false, true),
                               &table};
          };
          const CodedMoment m = moment(at::kCPU, signed_codes), v = moment(at::kCPU, unsigned_codes);
          const CodedMoment gm = moment(at::kCUDA, signed_codes), gv = moment(at::kCUDA, unsigned_codes);
          for (int64_t step = 1; step < 4; ++step) {
            const Twins g = twins(numel);
            for (const at::Tensor& each : {g.cpu, g.gpu}) {
              each.slice(0, 0, 256).mul_(1e-15);
              each.slice(0, 256, 512).zero_();
              if (numel > 1000 && step == 3)
                each.slice(0, 600, 601).fill_(NAN), each.slice(0, 900, 901).fill_(INFINITY);
            }
            AdamWStep options{1e-2, 0.9, 0.95, 1e-8, 0.1, step, 0.5, at::full({}, 0.37F, at::kFloat)};
            low_bit_adamw_step({w.cpu}, g.cpu, m, v, copy.cpu, options);
            options.gradient_scale = options.gradient_scale.to(at::kCUDA);
            low_bit_adamw_step({w.gpu}, g.gpu, gm, gv, copy.gpu, options);
          }
          for (const auto& [gpu, cpu] : {std::pair(gm, m), std::pair(gv, v)}) {
            EXPECT_TRUE(torch::equal(gpu.codes.cpu(), cpu.codes));
            EXPECT_TRUE(torch::allclose(gpu.scales.cpu(), cpu.scales, 0, 0, /*equal_nan=*/true));
          }
          EXPECT_TRUE(torch::allclose(w.gpu.cpu(), w.cpu, kFloatTolerance, kFloatTolerance, /*equal_nan=*/true));
          EXPECT_TRUE(torch::equal(copy.gpu.nan_to_num(3), w.gpu.to(dtype).nan_to_num(3)));
        }
      }
    }
  }
}

TEST_F(CudaFlatKernels, LowBitAdamWRefusesWhatItCannotRead) {
  const raw::BlockCodes table(code_table(BlockCode::kDynamic, CodeSign::kSigned).const_data_ptr<float>());
  const at::Tensor w = at::zeros({300}, at::kCUDA), codes = at::zeros({300}, at::kCUDA).to(at::kByte), none;
  const CodedMoment fits{codes, at::zeros({2}, at::kCUDA), &table}, few{codes, at::zeros({1}, at::kCUDA), &table};
  const AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 1};
  low_bit_adamw_step({w}, w, fits, fits, none, step);
  EXPECT_THROW(low_bit_adamw_step({w}, w, fits, few, none, step), c10::Error);
  EXPECT_THROW(low_bit_adamw_step({w, codes}, w, fits, fits, none, step), c10::Error);
}

TEST_F(CudaFlatKernels, PackEqualsATen) {
  for (const int64_t numel : kSizes) {
    for (const auto out : kDtypes) {
      for (const auto in : kDtypes) {
        for (const int64_t shift : {0, 1, 3}) {
          SCOPED_TRACE(c10::str(numel, " elements of ", in, " into ", out, ", shifted by ", shift));
          const Twins target = twins(numel, out, shift), gradient = twins(numel, in, shift == 3 ? 3 : 0);
          at::Tensor expected = (gradient.cpu.to(at::kDouble) * 0.37F).to(at::kFloat).to(out);
          pack_gradient(target.gpu, gradient.gpu, 0.37F, /*add=*/false);
          EXPECT_LE(difference(target.gpu, expected), rounding_of(out));
          expected = (expected.to(at::kDouble) + gradient.cpu.to(at::kDouble) * 0.37F).to(at::kFloat).to(out);
          pack_gradient(target.gpu, gradient.gpu, 0.37F, /*add=*/true);
          EXPECT_LE(difference(target.gpu, expected), 2 * rounding_of(out));
        }
      }
    }
  }
}

TEST_F(CudaFlatKernels, PackLeavesOtherStridesToATen) {
  const at::Tensor gradient = at::randn({30, 20}, at::kCUDA).t(), target = at::zeros({600}, at::kCUDA);
  pack_gradient(target, gradient, 0.5, /*add=*/false);
  pack_gradient(target, gradient, 0.5, /*add=*/true);
  EXPECT_LE(difference(target.view({20, 30}), gradient), kFloatTolerance);
}

TEST_F(CudaFlatKernels, SumsOfChunksHaveTheBitsOfTheCpu) {
  for (const int64_t numel : {0, 1, 7, 1023, 100'003}) {
    for (const int num_chunks : {1, 2, 3, 8, 256}) {
      if (numel > 2000 && num_chunks > 8) continue;
      for (const auto dtype : kDtypes) {
        for (const bool add : {false, true}) {
          SCOPED_TRACE(c10::str(num_chunks, " chunks of ", numel, " elements of ", dtype, add ? ", added" : ""));
          const Twins output = twins(numel);
          Tensors cpu, gpu;
          for (int i = 0; i < num_chunks; ++i) {
            const Twins chunk = twins(numel, dtype, i % 3 == 2 ? 1 : 0);
            cpu.push_back(chunk.cpu);
            gpu.push_back(chunk.gpu);
          }
          sum_chunks(output.cpu, cpu, add);
          sum_chunks(output.gpu, gpu, add);
          EXPECT_TRUE(torch::equal(output.gpu.cpu(), output.cpu));
        }
      }
    }
  }
}

TEST_F(CudaFlatKernels, SumsOfChunksRoundOnce) {
  const Twins output = twins(1001, at::kBFloat16), a = twins(1001, at::kBFloat16), b = twins(1001, at::kBFloat16);
  sum_chunks(output.cpu, {a.cpu, b.cpu, a.cpu}, /*add=*/true);
  sum_chunks(output.gpu, {a.gpu, b.gpu, a.gpu}, /*add=*/true);
  EXPECT_TRUE(torch::equal(output.gpu.cpu(), output.cpu));
}

TEST_F(CudaFlatKernels, RefuseTooManyChunks) {
  const at::Tensor tensor = at::zeros({3}, at::kCUDA);
  EXPECT_THROW(sum_chunks(tensor, Tensors(257, tensor), /*add=*/false), c10::Error);
}

TEST_F(CudaFlatKernels, SumsOfSquaresAreThoseInDouble) {
  // The last one has more elements than its blocks take at a time.
  for (const int64_t numel : {0, 1, 3, 4, 7, 1023, 100'003, 20'000'001}) {
    for (const auto dtype : kDtypes) {
      for (const int64_t begin : {0, 1}) {
        SCOPED_TRACE(c10::str(numel, " elements of ", dtype, " from ", begin));
        const Twins values = twins(numel, dtype, begin);
        const at::Tensor sum = sum_squares_on_device(values.gpu);
        EXPECT_TRUE(sum.is_cuda());
        EXPECT_EQ(sum.dim(), 0);
        const double expected = values.cpu.to(at::kDouble).square().sum().item<double>();
        EXPECT_NEAR(sum.item<double>(), expected, 1e-6 * expected);
        EXPECT_EQ(sum_squares_on_device(values.gpu).item<double>(), sum.item<double>());
        EXPECT_EQ(sum_squares(values.gpu), sum.item<double>());
      }
    }
  }
}

TEST_F(CudaFlatKernels, RefuseWhatTheyCannotRead) {
  const at::Tensor w = at::zeros({6}, at::kCUDA), none;
  const AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 1};
  EXPECT_THROW(adamw_step(w, at::zeros({6}), w, w, none, step), c10::Error);
  EXPECT_THROW(adamw_step(w, at::zeros({5}, at::kCUDA), w, w, none, step), c10::Error);
  EXPECT_THROW(adamw_step(w, w.to(at::kHalf), w, w, none, step), c10::Error);
  AdamWStep scaled = step;
  scaled.gradient_scale = at::ones({});
  EXPECT_THROW(adamw_step(w, w, w, w, none, scaled), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::flat_kernels_test
