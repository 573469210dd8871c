#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/bundle.h"

// libFuzzer's own mutations; the library brings it.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// What custom mutators share. They exist in the libFuzzer build only.
namespace fsdp::fuzz {

using Random = std::minstd_rand;

// Uniform in [0, n).
inline size_t pick(Random& random, size_t n) { return random() % n; }

// Bit flips, dictionary words, copies from other inputs and so on.
inline std::string mutate_text(std::string text, size_t max_size) {
  max_size = std::max<size_t>(max_size, 1);
  const size_t size = std::min(text.size(), max_size);
  text.resize(max_size);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, max_size));
  return text;
}

// The answer of LLVMFuzzerCustomMutator: `text`, cut to what fits.
inline size_t store(std::string_view text, uint8_t* data, size_t max_size) {
  const size_t size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), size);
  return size;
}

// Changes one of the files of a bundle with `mutate(parts, index, max_size)`.
template <class Mutate>
size_t mutate_bundle(uint8_t* data, size_t size, size_t max_size, size_t num_parts, Random& random,
                     const Mutate& mutate) {
  auto parts = split_bundle({reinterpret_cast<const char*>(data), size}, num_parts);
  mutate(parts, pick(random, num_parts), std::max<size_t>(max_size / 2, 64));
  return store(join_bundle(parts), data, max_size);
}

}  // namespace fsdp::fuzz
