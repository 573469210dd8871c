#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace fsdp::io {

static_assert(std::endian::native == std::endian::little,
              "token shards are little endian; so are the machines we know");

// The first 64 bytes of a .bin, an .idx and a .msk file (docs/data_format.md).
struct TokenShardHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t item_bytes;  // .bin: bytes per token, 1, 2 or 4; .idx: 8; .msk: 1
  uint64_t num_tokens;
  uint64_t num_documents;
  std::array<char, 32> zero;
};
static_assert(sizeof(TokenShardHeader) == 64);

inline constexpr std::array<char, 8> kTokensMagic = {'F', 'S', 'D', 'P', 'T', 'O', 'K', 'S'};
inline constexpr std::array<char, 8> kIndexMagic = {'F', 'S', 'D', 'P', 'T', 'I', 'D', 'X'};
inline constexpr std::array<char, 8> kMaskMagic = {'F', 'S', 'D', 'P', 'T', 'M', 'S', 'K'};
inline constexpr uint32_t kTokenShardVersion = 1;
inline constexpr uint32_t kIndexItemBytes = 8;
inline constexpr uint32_t kMaskItemBytes = 1;

}  // namespace fsdp::io
