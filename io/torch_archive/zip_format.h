#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

// The numbers of the zip format that reader and writer share. After: PKWARE's APPNOTE.TXT, 4.3 and 4.5.3.
namespace fsdp::io::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kMemberSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocator64Signature = 0x07064b50;

inline constexpr size_t kLocalBytes = 30;   // then name, extra
inline constexpr size_t kMemberBytes = 46;  // then name, extra, comment
inline constexpr size_t kEndBytes = 22;     // then comment
inline constexpr size_t kEnd64Bytes = 56;
inline constexpr size_t kLocator64Bytes = 20;

inline constexpr uint16_t kSizesExtra = 0x0001;  // id of the extra field with 64-bit numbers
inline constexpr uint16_t kEncryptedFlag = 0x0001;
inline constexpr uint32_t kIn64 = 0xFFFFFFFF;  // a 32-bit number that stands in the extra field instead
inline constexpr uint16_t kIn64Short = 0xFFFF;

// Little endian, unaligned. REQUIRES: the number lies inside `bytes`.
template <class Number>
Number get(std::string_view bytes, size_t offset) {
  Number number{};
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace fsdp::io::zip
