// Numbers of either type, with guards around results, and how near a result must come to one in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/kernels/raw/each_isa.h"

namespace fsdp::kernels::raw {

// Sums and functions in fp32, relative to the magnitudes that go in.
inline constexpr double kFine = 1e-5;

// One rounding to a tensor of T beyond that, relative.
template <class T>
inline constexpr double kRounding = std::is_same_v<T, Bf16> ? 1.0 / 256 : 0;

template <class T>
std::vector<T> random_numbers(int64_t count, uint32_t seed, float scale = 1) {
  if constexpr (std::is_same_v<T, Bf16>)
    return round_all(random_floats(count, seed, scale));
  else
    return random_floats(count, seed, scale);
}

// As a tensor of T holds it.
template <class T>
T rounded(double value) {
  return from_float<T>(static_cast<float>(value));
}

template <class T>
bool same_bits(const T* a, const T* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

// Numbers between others that must stay as they are. They start at no multiple of a vector's size.
template <class T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& start) : numbers_(kGuards, guard()) {
    numbers_.insert(numbers_.end(), start.begin(), start.end());
    numbers_.insert(numbers_.end(), kGuards, guard());
  }
  explicit Guarded(int64_t count) : Guarded(std::vector<T>(static_cast<size_t>(count), guard())) {}

  static T guard() { return from_float<T>(7); }
  T* data() { return numbers_.data() + kGuards; }
  int64_t size() const { return static_cast<int64_t>(numbers_.size()) - 2 * kGuards; }
  double operator[](int64_t i) const { return to_float(numbers_[static_cast<size_t>(kGuards + i)]); }
  bool has_bits_of(const Guarded& other) const {
    return size() == other.size() && same_bits(numbers_.data(), other.numbers_.data(), size() + 2 * kGuards);
  }
  bool is_intact() const {
    const auto stayed = [](T number) { return to_float(number) == to_float(guard()); };
    return std::all_of(numbers_.begin(), numbers_.begin() + kGuards, stayed) &&
           std::all_of(numbers_.end() - kGuards, numbers_.end(), stayed);
  }

 private:
  static constexpr int64_t kGuards = 17;
  std::vector<T> numbers_;
};

}  // namespace fsdp::kernels::raw
