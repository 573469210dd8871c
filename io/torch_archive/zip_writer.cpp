#include "io/torch_archive/zip_writer.h"

#include "io/base/crc32.h"
#include "io/torch_archive/zip_format.h"

namespace fsdp::io {

namespace {

constexpr uint16_t kZipVersion = 45;        // of the format: the first with zip64
constexpr uint16_t kUtf8Names = 0x0800;     // flag
constexpr uint16_t kFirstOfJanuary = 0x21;  // 1980: there is no zero in a zip file's dates
constexpr uint16_t kPaddingExtra = 0x4246;  // id that torch.save uses as well

std::string sizes_extra(uint64_t num_bytes) {
  std::string extra;
  zip::put<uint16_t>(extra, zip::kSizesExtra);
  zip::put<uint16_t>(extra, 2 * sizeof(uint64_t));
  zip::put(extra, num_bytes);
  zip::put(extra, num_bytes);
  return extra;
}

// The fields that local header and directory share, from "version needed" on.
void put_common(std::string& text, uint32_t crc32, size_t name_bytes, size_t extra_bytes) {
  zip::put<uint16_t>(text, kZipVersion);
  zip::put<uint16_t>(text, kUtf8Names);
  zip::put<uint16_t>(text, 0);  // stored
  zip::put<uint16_t>(text, 0);  // time
  zip::put<uint16_t>(text, kFirstOfJanuary);
  zip::put(text, crc32);
  zip::put(text, zip::kIn64);  // sizes
  zip::put(text, zip::kIn64);
  zip::put(text, static_cast<uint16_t>(name_bytes));
  zip::put(text, static_cast<uint16_t>(extra_bytes));
}

}  // namespace

void ZipComposer::add_local_header(const Member& member, std::string_view extra) {
  zip::put(head_, zip::kLocalSignature);
  put_common(head_, member.crc32, member.name.size(), extra.size());
  head_ += member.name;
  head_ += extra;
}

void ZipComposer::add(std::string_view name, std::string_view content) {
  members_.push_back({std::string(name), head_.size(), content.size(), crc32(0, content.data(), content.size())});
  add_local_header(members_.back(), sizes_extra(content.size()));
  head_ += content;
}

void ZipComposer::add_large(std::string_view name, uint64_t num_bytes, uint32_t crc32, uint64_t alignment) {
  members_.push_back({std::string(name), head_.size(), num_bytes, crc32});
  std::string extra = sizes_extra(num_bytes);
  const uint64_t end = head_.size() + zip::kLocalBytes + name.size() + extra.size() + 2 * sizeof(uint16_t);
  const uint64_t padding = (alignment - end % alignment) % alignment;
  zip::put(extra, kPaddingExtra);
  zip::put(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');
  add_local_header(members_.back(), extra);
}

std::string ZipComposer::tail() const {
  const uint64_t directory = head_.size() + (members_.empty() ? 0 : members_.back().bytes);
  std::string text;
  for (const Member& member : members_) {
    const std::string extra = sizes_extra(member.bytes);
    zip::put(text, zip::kMemberSignature);
    zip::put(text, kZipVersion);
    put_common(text, member.crc32, member.name.size(), extra.size());
    text.append(10, '\0');                                 // comment, disk, attributes
    zip::put(text, static_cast<uint32_t>(member.header));  // small members only come before it
    text += member.name;
    text += extra;
  }
  const uint64_t directory_bytes = text.size();
  zip::put(text, zip::kEnd64Signature);
  zip::put<uint64_t>(text, zip::kEnd64Bytes - 12);  // of what follows
  zip::put(text, kZipVersion);
  zip::put(text, kZipVersion);
  zip::put<uint64_t>(text, 0);  // disks
  zip::put<uint64_t>(text, members_.size());
  zip::put<uint64_t>(text, members_.size());
  zip::put(text, directory_bytes);
  zip::put(text, directory);
  zip::put(text, zip::kLocator64Signature);
  zip::put<uint32_t>(text, 0);  // disk
  zip::put(text, directory + directory_bytes);
  zip::put<uint32_t>(text, 1);  // disks
  zip::put(text, zip::kEndSignature);
  zip::put<uint32_t>(text, 0);  // disks
  zip::put(text, static_cast<uint16_t>(members_.size()));
  zip::put(text, static_cast<uint16_t>(members_.size()));
  zip::put(text, static_cast<uint32_t>(directory_bytes));
  zip::put(text, zip::kIn64);
  zip::put<uint16_t>(text, 0);  // comment
  return text;
}

}  // namespace fsdp::io
