#include "io/base/hash.h"

#define XXH_INLINE_ALL  // the header is all we need: no library to link
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "io/base/input_file.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

}  // namespace

uint64_t hash_file(const std::filesystem::path& path, ErrorKind kind) {
  const InputFile file(path, kind);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> piece(std::min(file.size(), kPieceBytes));
  for (uint64_t offset = 0; offset < file.size(); offset += piece.size()) {
    const uint64_t num_bytes = std::min<uint64_t>(piece.size(), file.size() - offset);
    file.read_at(offset, piece.data(), num_bytes);
    XXH3_64bits_update(state.get(), piece.data(), num_bytes);
  }
  return XXH3_64bits_digest(state.get());
}

uint64_t hash_bytes(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_text(uint64_t hash) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, hash >>= 4) *digit = kHex[hash & 15];
  return text;
}

}  // namespace fsdp::io
