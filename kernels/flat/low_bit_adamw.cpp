#include "kernels/flat/low_bit_adamw.h"

#include <algorithm>

#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/adamw.h"
#include "kernels/raw/flat/weight_digits.h"
#include "kernels/raw/products/panels.h"

namespace fsdp::kernels {
namespace {

// The finalizer of SplitMix64, to 32 bits.
uint32_t seed_of_block(uint64_t seed, int64_t block) {
  uint64_t bits = seed + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(block) + 1);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>((bits ^ (bits >> 31)) >> 32);
}

// fp32 numbers or bf16 ones.
class Numbers {
 public:
  explicit Numbers(const at::Tensor& tensor) {
    if (tensor.scalar_type() == at::kBFloat16) {
      half_ = raw_data(tensor.mutable_data_ptr<c10::BFloat16>());
    } else {
      wide_ = tensor.mutable_data_ptr<float>();
    }
  }
  float* wide() const { return wide_; }
  raw::Bf16* half() const { return half_; }

  // As fp32, in `room` where they are not.
  const float* read(int64_t begin, int64_t count, float* room) const {
    if (wide_ != nullptr) return wide_ + begin;
    raw::widen(half_ + begin, room, count);
    return room;
  }

 private:
  float* wide_ = nullptr;
  raw::Bf16* half_ = nullptr;
};

struct Moment {
  explicit Moment(const CodedMoment& moment)
      : codes(moment.codes.mutable_data_ptr<uint8_t>()),
        scales(moment.scales.mutable_data_ptr<float>()),
        code(*moment.code) {}
  void decode(int64_t block, float* numbers, int64_t count) const {
    raw::decode_block(codes + block * kMomentBlock, scales[block], code, numbers, count);
  }
  void encode(int64_t block, const float* numbers, int64_t count) const {
    scales[block] = raw::encode_block(numbers, code, codes + block * kMomentBlock, count);
  }

  uint8_t* codes;
  float* scales;
  const raw::BlockCodes& code;
};

class Weights {
 public:
  Weights(const KeptWeights& kept, const at::Tensor& copy)
      : numbers_(kept.weight), seed_(kept.random_seed), first_block_(kept.begin / kMomentBlock) {
    if (kept.digits.defined()) digits_ = kept.digits.mutable_data_ptr<int8_t>();
    if (!copy.defined() || digits_ != nullptr) return;
    if (copy.scalar_type() == at::kFloat) copied_ = copy.mutable_data_ptr<float>();
    if (copy.scalar_type() == at::kBFloat16) rounded_ = raw_data(copy.mutable_data_ptr<c10::BFloat16>());
  }

  // Where they may be updated before write().
  float* read(int64_t block, int64_t count, float* room) const {
    const int64_t begin = block * kMomentBlock;
    if (digits_ == nullptr) return numbers_.wide() + begin;
    raw::join_digits(numbers_.half() + begin, digits_ + begin, room, count);
    return room;
  }

  void write(int64_t block, const float* weight, int64_t count) const {
    const int64_t begin = block * kMomentBlock;
    if (rounded_ != nullptr) raw::narrow(weight, rounded_ + begin, count);
    if (copied_ != nullptr) std::copy_n(weight, count, copied_ + begin);
    if (digits_ == nullptr) return;
    raw::Bf16* half = numbers_.half() + begin;
    if (seed_) {
      const uint32_t seed = seed_of_block(*seed_, first_block_ + block);
      raw::split_digits_randomly(weight, seed, half, digits_ + begin, count);
    } else {
      raw::split_digits(weight, half, digits_ + begin, count);
    }
  }

 private:
  Numbers numbers_;
  int8_t* digits_ = nullptr;
  float* copied_ = nullptr;
  raw::Bf16* rounded_ = nullptr;
  std::optional<uint64_t> seed_;
  int64_t first_block_;
};

}  // namespace

void low_bit_adamw_step(const KeptWeights& kept, const at::Tensor& gradient, const CodedMoment& first,
                        const CodedMoment& second, const at::Tensor& copy, const AdamWStep& step) {
  if (!kept.weight.is_cpu()) {
    const FlatKernels& kernels = need_flat_kernels("low_bit_adamw_step", kept.weight);
    return kernels.low_bit_adamw_step(kept, gradient, first, second, copy, step);
  }
  AdamWFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  const Weights weights(kept, copy);
  const Numbers gradients(gradient);
  const Moment firsts(first), seconds(second);
  constexpr int64_t kGrain = 64;
  const int64_t numel = kept.weight.numel();
  parallel_for(0, (numel + kMomentBlock - 1) / kMomentBlock, kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) float weight_room[kMomentBlock], gradient_room[kMomentBlock], m[kMomentBlock], v[kMomentBlock];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t count = std::min(kMomentBlock, numel - block * kMomentBlock);
      firsts.decode(block, m, count);
      seconds.decode(block, v, count);
      float* weight = weights.read(block, count, weight_room);
      raw::adamw(weight, gradients.read(block * kMomentBlock, count, gradient_room), m, v, count, factors);
      firsts.encode(block, m, count);
      seconds.encode(block, v, count);
      weights.write(block, weight, count);
    }
  });
  if (copy.defined() && (kept.digits.defined() || copy.scalar_type() == at::kHalf)) at::Tensor(copy).copy_(kept.weight);
}

}  // namespace fsdp::kernels
