#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// Composes a zip archive around one large member whose bytes somebody else writes: only its length and, in the end, its
// CRC are needed. Small members come first; all are stored, with zip64 records throughout.
class ZipComposer {
 public:
  // A small member.
  void add(std::string_view name, std::string_view content);
  // The large member; its data start at a multiple of `alignment` bytes from the start of the archive. Call it last.
  void add_large(std::string_view name, uint64_t num_bytes, uint32_t crc32, uint64_t alignment);

  // From the start of the archive to the large member's data.
  const std::string& head() const { return head_; }
  // From the end of the large member's data to the end of the archive.
  std::string tail() const;

 private:
  struct Member {
    std::string name;
    uint64_t header;
    uint64_t bytes;
    uint32_t crc32;
  };
  void add_local_header(const Member& member, std::string_view extra);

  std::string head_;
  std::vector<Member> members_;
};

}  // namespace fsdp::io
