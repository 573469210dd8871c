#include "kernels/flat/exact_sum.h"

#include <cmath>
#include <limits>

namespace fsdp::kernels {
namespace {

constexpr int kLowestExponent = -1074, kDoubleMantissaBits = 53, kWordBits = 32;
constexpr size_t kDigits = ExactSum::kWords - 2, kInfinite = kDigits, kNaN = kDigits + 1;
constexpr int64_t kDigitMask = 0xffffffff;
// Each adds less than 2^32 to a word.
constexpr int64_t kAddsBetweenCarries = int64_t{1} << 30;

static_assert(kDigits * kWordBits > 1024 - kLowestExponent + kWordBits, "room above the largest number");

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    words_[std::isnan(value) ? kNaN : kInfinite] += 1;
    return;
  }
  if (value == 0) return;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // [0.5, 1)
  int place = exponent - kDoubleMantissaBits - kLowestExponent;
  auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, kDoubleMantissaBits));
  if (place < 0) {  // below the normal numbers: the last bits are zero
    mantissa >>= -place;
    place = 0;
  }
  const auto shifted = static_cast<unsigned __int128>(mantissa) << (place % kWordBits);
  const auto word = static_cast<size_t>(place / kWordBits);
  words_[word] += static_cast<int64_t>(shifted) & kDigitMask;
  words_[word + 1] += static_cast<int64_t>(shifted >> kWordBits) & kDigitMask;
  words_[word + 2] += static_cast<int64_t>(shifted >> 2 * kWordBits);
  if (++adds_ == kAddsBetweenCarries) carry();
}

void ExactSum::carry() {
  adds_ = 0;
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    words_[i + 1] += words_[i] >> kWordBits;
    words_[i] &= kDigitMask;
  }
}

const ExactSum::Words& ExactSum::words() {
  carry();
  return words_;
}

double ExactSum::rounded() {
  carry();
  if (words_[kNaN] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (words_[kInfinite] > 0) return std::numeric_limits<double>::infinity();
  size_t top = kDigits - 1;
  while (top > 2 && words_[top] == 0) --top;
  unsigned __int128 leading = 0;
  for (size_t i = 0; i < 3; ++i) leading = leading << kWordBits | static_cast<uint64_t>(words_[top - i]);
  for (size_t i = 0; i + 2 < top; ++i) leading |= words_[i] != 0 ? 1 : 0;  // far below the last digit that is kept
  return std::ldexp(static_cast<double>(leading), static_cast<int>(top - 2) * kWordBits + kLowestExponent);
}

}  // namespace fsdp::kernels
