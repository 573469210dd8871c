#include "io/hub/model_identity.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/base/dtype.h"
#include "io/base/hash.h"

namespace fsdp::io {
namespace {

constexpr int64_t kPlaces = 16;
constexpr int64_t kElementsAtAPlace = 256;

std::string hash_of_values(const ModelFolder& base, const std::string& name, const TensorEntry& entry) {
  int64_t numel = 1;
  for (const int64_t size : entry.shape) numel *= size;
  const int64_t count = std::min(kElementsAtAPlace, numel);
  std::vector<char> bytes(static_cast<size_t>(count) * item_size(entry.dtype));
  std::string hashes;
  for (int64_t place = 0; place < kPlaces && count > 0; ++place) {
    base.read(name, (numel - count) / (kPlaces - 1) * place, count, bytes.data());
    hashes += hash_text(hash_bytes({bytes.data(), bytes.size()}));
  }
  return hashes;
}

}  // namespace

std::string identify_model(const ModelFolder& base) {
  std::string text;
  for (const std::string& name : base.names()) {
    const TensorEntry& entry = *base.find(name)->entry;
    text += name + " " + std::string(io::name(entry.dtype));
    for (const int64_t size : entry.shape) text += " " + std::to_string(size);
    text += " " + hash_of_values(base, name, entry) + "\n";
  }
  return hash_text(hash_bytes(text));
}

}  // namespace fsdp::io
