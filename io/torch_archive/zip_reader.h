#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/input_file.h"

namespace fsdp::io {

// A stored (not compressed) member of a zip archive.
struct ZipMember {
  std::string name;
  uint64_t header = 0;  // of its local header, from the start of the archive
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // 0: the writer did not compute it
};

// The directory of a zip archive that is bytes [begin, begin + length) of a file, as torch.save writes it: zip64 or
// not, every member stored, no comment. Borrows the file. Nothing is believed before it is checked; errors are those of
// the file's kind and name the archive's first byte.
class ZipReader {
 public:
  ZipReader(const InputFile& file, uint64_t begin, uint64_t length);

  const std::vector<ZipMember>& members() const { return members_; }
  // The member of that name, or null.
  const ZipMember* find(std::string_view name) const;
  // Where its data starts, from the start of the file; all of it lies inside the archive.
  uint64_t data_begin(const ZipMember& member) const;
  // All of a small member. Throws if it is longer than `max_bytes` or its CRC is wrong.
  std::string read(const ZipMember& member, uint64_t max_bytes) const;

  Error error(const std::string& detail) const;

 private:
  struct Directory {
    uint64_t begin = 0;  // from the start of the archive
    uint64_t bytes = 0;
    uint64_t num_members = 0;
  };
  Directory find_directory() const;
  void parse(const Directory& directory);
  ZipMember parse_member(std::string_view& rest) const;

  const InputFile& file_;
  const uint64_t begin_;
  const uint64_t length_;
  uint64_t directory_ = 0;  // where the directory starts, and hence data ends
  std::vector<ZipMember> members_;
};

}  // namespace fsdp::io
