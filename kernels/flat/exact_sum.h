#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdp::kernels {

// A sum of fp64 numbers without any rounding, so that it does not depend on their order: a long integer in words of 32
// bits, which have room for carries. About 5 ns a number.
class ExactSum {
 public:
  // Words that say everything; those of several sums, added up word by word, are the words of the sum of all.
  static constexpr size_t kWords = 70;
  using Words = std::array<int64_t, kWords>;

  // At least 0, or not finite.
  void add(double value);
  const Words& words();
  void set_words(const Words& words) { words_ = words; }
  // Rounded once to the nearest, ties to even; inf or NaN if one of the numbers was.
  double rounded();

 private:
  void carry();

  Words words_{};  // of 2^(32 k - 1074); the last two count what was infinite and what was NaN
  int64_t adds_ = 0;
};

}  // namespace fsdp::kernels
