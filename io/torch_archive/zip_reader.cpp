#include "io/torch_archive/zip_reader.h"

#include <algorithm>

#include "io/base/crc32.h"
#include "io/torch_archive/zip_format.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kMaxDirectoryBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxMembers = 4096;

}  // namespace

ZipReader::ZipReader(const InputFile& file, uint64_t begin, uint64_t length)
    : file_(file), begin_(begin), length_(length) {
  if (begin > file.size() || length > file.size() - begin) {
    throw error("got " + std::to_string(length) + " bytes there, expected them inside the file of " +
                std::to_string(file.size()) + ". The file is truncated, or belongs to another checkpoint.");
  }
  parse(find_directory());
}

Error ZipReader::error(const std::string& detail) const {
  return file_.error("zip", "archive at byte " + std::to_string(begin_) + ": " + detail);
}

ZipReader::Directory ZipReader::find_directory() const {
  if (length_ < zip::kEndBytes) {
    throw error("got " + std::to_string(length_) + " bytes, expected at least 22. The file is damaged.");
  }
  const size_t tail_bytes = std::min<uint64_t>(length_, zip::kEndBytes + zip::kLocator64Bytes);
  std::string tail(tail_bytes, '\0');
  file_.read_at(begin_ + length_ - tail_bytes, tail.data(), tail.size());
  const size_t end = tail_bytes - zip::kEndBytes;
  if (zip::get<uint32_t>(tail, end) != zip::kEndSignature || zip::get<uint16_t>(tail, end + 20) != 0) {
    throw error(
        "got no end of a zip archive, expected one without a comment. The file is damaged or not of torch.save.");
  }
  Directory directory{.begin = zip::get<uint32_t>(tail, end + 16),
                      .bytes = zip::get<uint32_t>(tail, end + 12),
                      .num_members = zip::get<uint16_t>(tail, end + 10)};
  uint64_t limit = length_ - zip::kEndBytes;
  if (end == zip::kLocator64Bytes && zip::get<uint32_t>(tail, 0) == zip::kLocator64Signature) {
    const uint64_t offset = zip::get<uint64_t>(tail, 8);
    limit -= zip::kLocator64Bytes;
    if (limit < zip::kEnd64Bytes || offset > limit - zip::kEnd64Bytes) {
      throw error("got its zip64 record at byte " + std::to_string(offset) +
                  ", expected it inside the archive. The file is damaged.");
    }
    std::string record(zip::kEnd64Bytes, '\0');
    file_.read_at(begin_ + offset, record.data(), record.size());
    if (zip::get<uint32_t>(record, 0) != zip::kEnd64Signature) {
      throw error("got no zip64 record at byte " + std::to_string(offset) + ", expected one. The file is damaged.");
    }
    directory = {.begin = zip::get<uint64_t>(record, 48),
                 .bytes = zip::get<uint64_t>(record, 40),
                 .num_members = zip::get<uint64_t>(record, 32)};
    limit = offset;
  }
  if (directory.begin > limit || directory.bytes > limit - directory.begin) {
    throw error("got a directory of " + std::to_string(directory.bytes) + " bytes at byte " +
                std::to_string(directory.begin) + ", expected it inside the archive. The file is damaged.");
  }
  return directory;
}

void ZipReader::parse(const Directory& directory) {
  if (directory.bytes > kMaxDirectoryBytes || directory.num_members > kMaxMembers) {
    throw error("got " + std::to_string(directory.num_members) + " members in a directory of " +
                std::to_string(directory.bytes) + " bytes, expected a few. The file is damaged or not of torch.save.");
  }
  directory_ = directory.begin;
  std::string text(directory.bytes, '\0');
  file_.read_at(begin_ + directory.begin, text.data(), text.size());
  std::string_view rest = text;
  for (uint64_t i = 0; i < directory.num_members; ++i) {
    ZipMember member = parse_member(rest);
    if (find(member.name) != nullptr) {
      throw error("got the member " + in_quotes(member.name) + " twice, expected it once. The file is damaged.");
    }
    members_.push_back(std::move(member));
  }
}

// Takes one entry of the directory off `rest`.
ZipMember ZipReader::parse_member(std::string_view& rest) const {
  if (rest.size() < zip::kMemberBytes || zip::get<uint32_t>(rest, 0) != zip::kMemberSignature) {
    throw error("got no entry of a directory where one should be, expected it. The file is damaged.");
  }
  const size_t name_bytes = zip::get<uint16_t>(rest, 28);
  const size_t extra_bytes = zip::get<uint16_t>(rest, 30);
  const size_t all_bytes = zip::kMemberBytes + name_bytes + extra_bytes + zip::get<uint16_t>(rest, 32);
  if (all_bytes > rest.size())
    throw error("got a directory that ends early, expected all entries. The file is damaged.");
  ZipMember member{.name = std::string(rest.substr(zip::kMemberBytes, name_bytes)),
                   .header = zip::get<uint32_t>(rest, 42),
                   .bytes = zip::get<uint32_t>(rest, 24),
                   .crc32 = zip::get<uint32_t>(rest, 16)};
  if ((zip::get<uint16_t>(rest, 8) & zip::kEncryptedFlag) != 0 || zip::get<uint16_t>(rest, 10) != 0) {
    throw error("member " + in_quotes(member.name) +
                ": got compressed or encrypted data, expected it stored. Save it with torch.save.");
  }
  uint64_t stored_bytes = zip::get<uint32_t>(rest, 20);
  std::string_view extra = rest.substr(zip::kMemberBytes + name_bytes, extra_bytes);
  while (extra.size() >= 4) {
    const size_t field_bytes = zip::get<uint16_t>(extra, 2);
    if (field_bytes > extra.size() - 4) break;
    std::string_view field = extra.substr(4, field_bytes);
    if (zip::get<uint16_t>(extra, 0) == zip::kSizesExtra) {
      for (uint64_t* number :
           {&member.bytes, &stored_bytes, &member.header}) {  // in this order, those that are missing
        if (*number != zip::kIn64 || field.size() < sizeof(uint64_t)) continue;
        *number = zip::get<uint64_t>(field, 0);
        field.remove_prefix(sizeof(uint64_t));
      }
    }
    extra.remove_prefix(4 + field_bytes);
  }
  if (stored_bytes != member.bytes) {
    throw error("member " + in_quotes(member.name) + ": got " + std::to_string(stored_bytes) +
                " stored bytes, expected " + std::to_string(member.bytes) + ". The file is damaged.");
  }
  rest.remove_prefix(all_bytes);
  return member;
}

const ZipMember* ZipReader::find(std::string_view name) const {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const ZipMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

uint64_t ZipReader::data_begin(const ZipMember& member) const {
  if (member.header > directory_ || directory_ - member.header < zip::kLocalBytes) {
    throw error("member " + in_quotes(member.name) + ": got its header at byte " + std::to_string(member.header) +
                ", expected it before the directory. The file is damaged.");
  }
  std::string header(zip::kLocalBytes, '\0');
  file_.read_at(begin_ + member.header, header.data(), header.size());
  if (zip::get<uint32_t>(header, 0) != zip::kLocalSignature) {
    throw error("member " + in_quotes(member.name) + ": got no header at byte " + std::to_string(member.header) +
                ", expected one. The file is damaged.");
  }
  const uint64_t data =
      member.header + zip::kLocalBytes + zip::get<uint16_t>(header, 26) + zip::get<uint16_t>(header, 28);
  if (data > directory_ || member.bytes > directory_ - data) {
    throw error("member " + in_quotes(member.name) + ": got " + std::to_string(member.bytes) + " bytes at byte " +
                std::to_string(data) + ", expected them before the directory. The file is damaged.");
  }
  return begin_ + data;
}

std::string ZipReader::read(const ZipMember& member, uint64_t max_bytes) const {
  if (member.bytes > max_bytes) {
    throw error("member " + in_quotes(member.name) + ": got " + std::to_string(member.bytes) +
                " bytes, expected at most " + std::to_string(max_bytes) +
                ". The file is damaged or not of torch.save.");
  }
  std::string text(member.bytes, '\0');
  file_.read_at(data_begin(member), text.data(), text.size());
  if (member.crc32 != 0 && crc32(0, text.data(), text.size()) != member.crc32) {
    throw error("member " + in_quotes(member.name) + ": got another CRC than the directory says. The file is damaged.");
  }
  return text;
}

}  // namespace fsdp::io
