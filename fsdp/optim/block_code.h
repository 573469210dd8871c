#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp {

// Numbers of a block share a scale, the largest of their magnitudes; each is one of 256 fractions of it.
inline constexpr int64_t kCodeBlock = 256;

// How the fractions are spread.
enum class BlockCode {
  kDynamic,  // over 7 decades, evenly in each: small numbers keep 2 to 64 steps of their own decade
  kLinear,   // evenly
};

// Whether numbers may be negative. Fractions of such as may not, and are not 0 in linear code: a second moment of 0
// beside a first one that is none would be divided by.
enum class CodeSign { kSigned, kUnsigned };

// The 256 fractions, ascending, fp32. The dynamic ones after: Dettmers et al. 2022, "8-bit optimizers via block-wise
// quantization".
at::Tensor code_table(BlockCode code, CodeSign sign);

// One code on one device.
class BlockCoder {
 public:
  BlockCoder(BlockCode code, CodeSign sign, c10::Device device);

  // `codes` [blocks, width] uint8 and `scales` [blocks] fp32 to fp32 [blocks, width].
  at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales) const;
  // The nearest fractions; a block of zeros has scale 0.
  void encode(const at::Tensor& numbers, const at::Tensor& codes, const at::Tensor& scales) const;

 private:
  at::Tensor table_;
  at::Tensor borders_;  // between neighbouring fractions
};

}  // namespace fsdp
