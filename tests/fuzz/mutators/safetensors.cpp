#include "tests/fuzz/mutators/safetensors_image.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  const std::string file(reinterpret_cast<const char*>(data), size);
  return store(mutate_safetensors(file, max_size, random), data, max_size);
}
