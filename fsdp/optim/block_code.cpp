#include "fsdp/optim/block_code.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace fsdp {
namespace {

std::vector<float> dynamic_fractions(CodeSign sign) {
  constexpr int kDecades = 7;
  std::vector<float> fractions{0, 1};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int count = 1 << (sign == CodeSign::kSigned ? decade : decade + 1);
    const double top = std::pow(10.0, decade - (kDecades - 1));
    for (int i = 0; i < count; ++i) {
      const double middle = 0.1 + 0.9 * (i + 0.5) / count;  // of the i-th of equal parts of [0.1, 1]
      fractions.push_back(static_cast<float>(top * middle));
      if (sign == CodeSign::kSigned) fractions.push_back(static_cast<float>(-top * middle));
    }
  }
  std::sort(fractions.begin(), fractions.end());
  return fractions;
}

std::vector<float> linear_fractions(CodeSign sign) {
  std::vector<float> fractions;
  for (int i = 0; i < 256; ++i) {
    // Signed: -1, -1, -126/127, ..., 0, ..., 1.
    const int level = sign == CodeSign::kSigned ? std::max(i - 128, -127) : i + 1;
    fractions.push_back(static_cast<float>(level) / (sign == CodeSign::kSigned ? 127.0F : 256.0F));
  }
  return fractions;
}

}  // namespace

at::Tensor code_table(BlockCode code, CodeSign sign) {
  const std::vector<float> fractions = code == BlockCode::kDynamic ? dynamic_fractions(sign) : linear_fractions(sign);
  return at::tensor(fractions, at::kFloat);
}

BlockCoder::BlockCoder(BlockCode code, CodeSign sign, c10::Device device)
    : table_(code_table(code, sign).to(device)), borders_((table_.slice(0, 1) + table_.slice(0, 0, 255)) / 2) {}

at::Tensor BlockCoder::decode(const at::Tensor& codes, const at::Tensor& scales) const {
  const at::Tensor fractions = table_.index_select(0, codes.flatten().to(at::kInt)).view(codes.sizes());
  return fractions.mul_(scales.unsqueeze(1));
}

void BlockCoder::encode(const at::Tensor& numbers, const at::Tensor& codes, const at::Tensor& scales) const {
  scales.copy_(numbers.abs().amax(1));
  const at::Tensor fractions = numbers / scales.clamp_min(1e-38).unsqueeze(1);
  codes.copy_(at::bucketize(fractions, borders_, /*out_int32=*/true));
}

}  // namespace fsdp
