#include "tests/fuzz/mutators/pickle_code.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  const std::string pickle(reinterpret_cast<const char*>(data), size);
  return store(mutate_pickle(pickle, max_size, random), data, max_size);
}
