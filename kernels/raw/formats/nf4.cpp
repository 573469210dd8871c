#include "kernels/raw/formats/nf4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace fsdp::kernels::raw {
namespace {

// Quantiles of a normal distribution, scaled to [-1, 1], with an exact 0.
constexpr std::array<float, 16> kNf4Values = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

// Below it the reciprocal of a scale overflows.
constexpr float kSmallestScale = 1e-38F;

std::array<float, 15> nf4_borders() {
  std::array<float, 15> borders;
  for (size_t i = 0; i < borders.size(); ++i) borders[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return borders;
}

// Of each x in [-1, 1] how many borders are below it: border by border, so that the compiler makes vectors of it.
std::array<int32_t, kNf4Block> nf4_codes(const std::array<float, kNf4Block>& x) {
  static const std::array<float, 15> borders = nf4_borders();
  std::array<int32_t, kNf4Block> codes{};
  for (const float border : borders) {
    for (size_t i = 0; i < x.size(); ++i) codes[i] += border < x[i] ? 1 : 0;
  }
  return codes;
}

// ---- scales

// Halves of decades: 2^e means of equal parts of [0.1, 1], times 10^(e - 6), for e of 0 to 6, of both signs; 0 and 1.
std::array<float, 256> make_scale_values() {
  std::array<float, 256> values{};
  size_t count = 0;
  constexpr int kExponents = 7;
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    const int parts = 1 << exponent;
    const float step = (1.0F - 0.1F) / static_cast<float>(parts);
    // From both ends, as LibTorch's linspace counts.
    const auto border = [&](int i) {
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1F)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0F);
    };
    const auto decade = static_cast<float>(std::pow(10.0, exponent - (kExponents - 1)));
    for (int part = 0; part < parts; ++part) {
      const float value = decade * ((border(part) + border(part + 1)) / 2.0F);
      values[count++] = value;
      values[count++] = -value;
    }
  }
  values[count++] = 0;
  values[count++] = 1;
  std::sort(values.begin(), values.end());
  return values;
}

const std::array<float, 256>& scale_values() {
  static const std::array<float, 256> values = make_scale_values();
  return values;
}

// How many borders between values are below x in [-1, 1], which first goes to the nearest of 65536 places.
uint8_t scale_code(float x) {
  static const std::array<float, 255> borders = [] {
    std::array<float, 255> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = (scale_values()[i] + scale_values()[i + 1]) * 0.5F;
    return values;
  }();
  constexpr float kLastPlace = 65535;
  const auto place = static_cast<float>(static_cast<int>(std::fma((x + 1) * 0.5F, kLastPlace, 0.5F)));
  const float moved = (place + place) / kLastPlace - 1;
  return static_cast<uint8_t>(std::lower_bound(borders.begin(), borders.end(), moved) - borders.begin());
}

// ---- the sum of scales

constexpr size_t kSumRows = 4;  // vectors that are added up side by side
constexpr size_t kSumLevels = 4;

template <size_t kWidth>
using SumVector = std::array<float, kWidth>;

template <size_t kWidth>
void add_to(SumVector<kWidth>& sum, const float* x) {
  for (size_t lane = 0; lane < kWidth; ++lane) sum[lane] += x[lane];
}

// Of `count` rows of kSumRows vectors: sums of sums, so that none has many summands.
template <size_t kWidth>
std::array<SumVector<kWidth>, kSumRows> sum_of_rows(const float* x, int64_t count) {
  const int64_t bits = count > 1 ? static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(count - 1))) : 0;
  const int64_t power = std::max<int64_t>(4, bits / static_cast<int64_t>(kSumLevels));
  const int64_t step = int64_t{1} << power;
  std::array<std::array<SumVector<kWidth>, kSumRows>, kSumLevels> sums{};
  const auto add_row = [&](int64_t row) {
    for (size_t k = 0; k < kSumRows; ++k) add_to(sums[0][k], x + (static_cast<size_t>(row) * kSumRows + k) * kWidth);
  };
  int64_t row = 0;
  while (row + step <= count) {
    for (const int64_t end = row + step; row < end; ++row) add_row(row);
    for (size_t level = 1; level < kSumLevels; ++level) {
      for (size_t k = 0; k < kSumRows; ++k) {
        add_to(sums[level][k], sums[level - 1][k].data());
        sums[level - 1][k] = {};
      }
      if ((row & ((step - 1) << (static_cast<int64_t>(level) * power))) != 0) break;
    }
  }
  for (; row < count; ++row) add_row(row);
  for (size_t level = 1; level < kSumLevels; ++level) {
    for (size_t k = 0; k < kSumRows; ++k) add_to(sums[0][k], sums[level][k].data());
  }
  return sums[0];
}

template <size_t kWidth>
SumVector<kWidth> sum_of_vectors(const float* x, int64_t count) {
  constexpr auto kRows = static_cast<int64_t>(kSumRows);
  std::array<SumVector<kWidth>, kSumRows> sums = sum_of_rows<kWidth>(x, count / kRows);
  for (int64_t vector = count / kRows * kRows; vector < count; ++vector)
    add_to(sums[0], x + vector * static_cast<int64_t>(kWidth));
  for (size_t k = 1; k < kSumRows; ++k) add_to(sums[0], sums[k].data());
  return sums[0];
}

float sum_of_scales(const float* x, int64_t count) {
  constexpr int64_t kWidth = 8;
  if (count < kWidth) return sum_of_vectors<1>(x, count)[0];
  const SumVector<kWidth> lanes = sum_of_vectors<kWidth>(x, count / kWidth);
  float sum = 0;
  for (int64_t i = count / kWidth * kWidth; i < count; ++i) sum += x[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

// ---- blocks

void encode_block(const float* x, int64_t count, float& scale, uint8_t* codes) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  // A block that the tensor's end cuts short is divided, not multiplied, and its scale is never 0.
  const bool is_whole = count == kNf4Block;
  scale = is_whole ? largest : std::max(largest, kSmallestScale);
  if (codes == nullptr) return;
  const float shrink = 1.0F / std::max(largest, kSmallestScale);
  std::array<float, kNf4Block> parts{};
  for (int64_t i = 0; i < count; ++i) {
    parts[static_cast<size_t>(i)] = std::clamp(is_whole ? x[i] * shrink : x[i] / scale, -1.0F, 1.0F);
  }
  const std::array<int32_t, kNf4Block> all = nf4_codes(parts);
  for (int64_t pair = 0; pair < (count + 1) / 2; ++pair) {
    const auto first = static_cast<size_t>(2 * pair);
    codes[pair] = static_cast<uint8_t>(all[first] << 4 | all[first + 1]);
  }
}

float float_at(const uint8_t* bytes) {
  float value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void decode(const uint8_t* record, const Nf4Layout& layout, int64_t first, int64_t count, T* out) {
  const std::array<float, 256>& bytes = scale_values();
  const float mean = float_at(record + layout.mean());
  const uint8_t* const scales = record + layout.block_scales();
  const uint8_t* const codes = record + layout.codes();
  for (int64_t at = first, end = first + count; at < end;) {
    const int64_t block = at / kNf4Block, stop = std::min(end, (block + 1) * kNf4Block);
    const float group = float_at(record + block / kNf4Group * int64_t{sizeof(float)});
    const float scale = bytes[scales[block]] * group + mean;
    std::array<T, 16> values;
    for (size_t code = 0; code < values.size(); ++code) values[code] = from_float<T>(kNf4Values[code] * scale);
    if (at % 2 != 0) *out++ = values[codes[at++ / 2] & 15];
    for (; at + 1 < stop; at += 2) {
      const uint8_t pair = codes[at / 2];
      *out++ = values[pair >> 4];
      *out++ = values[pair & 15];
    }
    if (at < stop) *out++ = values[codes[at++ / 2] >> 4];
  }
}

}  // namespace

void nf4_encode(const float* x, int64_t count, float* scales, uint8_t* codes) {
  for (int64_t first = 0; first < count; first += kNf4Block) {
    uint8_t* const own = codes == nullptr ? nullptr : codes + first / 2;
    encode_block(x + first, std::min(kNf4Block, count - first), scales[first / kNf4Block], own);
  }
}

void nf4_encode_scales(const float* scales, const Nf4Layout& layout, uint8_t* record) {
  const int64_t blocks = layout.num_blocks();
  const float mean = blocks == 0 ? 0 : sum_of_scales(scales, blocks) / static_cast<float>(blocks);
  std::memcpy(record + layout.mean(), &mean, sizeof mean);
  for (int64_t group = 0; group < layout.num_groups(); ++group) {
    const int64_t begin = group * kNf4Group, end = std::min(blocks, begin + kNf4Group);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(scales[i] - mean));
    std::memcpy(record + group * int64_t{sizeof(float)}, &largest, sizeof largest);
    const float shrink = largest > 0 ? 1 / largest : 0;
    for (int64_t i = begin; i < end; ++i) {
      const float part = std::clamp((scales[i] - mean) * shrink, -1.0F, 1.0F);
      record[layout.block_scales() + i] = largest > 0 ? scale_code(part) : uint8_t{0};
    }
  }
}

void nf4_decode(const uint8_t* record, const Nf4Layout& layout, int64_t first, int64_t count, float* out) {
  decode(record, layout, first, count, out);
}
void nf4_decode(const uint8_t* record, const Nf4Layout& layout, int64_t first, int64_t count, Bf16* out) {
  decode(record, layout, first, count, out);
}

const float* nf4_values() { return kNf4Values.data(); }
const float* nf4_scale_values() { return scale_values().data(); }

}  // namespace fsdp::kernels::raw
