#include <array>
#include <vector>

#include "io/base/crc32.h"
#include "io/torch_archive/zip_format.h"
#include "tests/fuzz/mutators/pickle_code.h"

namespace fsdp::fuzz {
namespace {

namespace zip = io::zip;

struct Member {
  std::string name;
  std::string bytes;
};

// The members one after the other, as far as their local headers can be read.
std::vector<Member> read_members(std::string_view archive) {
  std::vector<Member> members;
  while (archive.size() >= zip::kLocalBytes && zip::get<uint32_t>(archive, 0) == zip::kLocalSignature) {
    const size_t num_bytes = zip::get<uint32_t>(archive, 18);
    const size_t name_bytes = zip::get<uint16_t>(archive, 26);
    const size_t extra_bytes = zip::get<uint16_t>(archive, 28);
    if (zip::kLocalBytes + name_bytes + extra_bytes + num_bytes > archive.size()) break;
    members.push_back({std::string(archive.substr(zip::kLocalBytes, name_bytes)),
                       std::string(archive.substr(zip::kLocalBytes + name_bytes + extra_bytes, num_bytes))});
    archive.remove_prefix(zip::kLocalBytes + name_bytes + extra_bytes + num_bytes);
  }
  return members;
}

// What local header and directory entry have in common: from "version needed" to the length of the extra field.
void put_common(std::string& out, const Member& member, uint32_t crc) {
  for (const uint16_t number : {20, 0, 0, 0, 33}) zip::put<uint16_t>(out, number);
  zip::put(out, crc);
  zip::put(out, static_cast<uint32_t>(member.bytes.size()));
  zip::put(out, static_cast<uint32_t>(member.bytes.size()));
  zip::put(out, static_cast<uint16_t>(member.name.size()));
  zip::put<uint16_t>(out, 0);
}

std::string write_members(const std::vector<Member>& members, bool with_crc) {
  std::string archive;
  std::string directory;
  for (const Member& member : members) {
    const uint32_t crc = with_crc ? io::crc32(0, member.bytes.data(), member.bytes.size()) : 0;
    zip::put(directory, zip::kMemberSignature);
    zip::put<uint16_t>(directory, 20);
    put_common(directory, member, crc);
    for (int zeros = 0; zeros < 5; ++zeros) zip::put<uint16_t>(directory, 0);
    zip::put(directory, static_cast<uint32_t>(archive.size()));
    directory += member.name;
    zip::put(archive, zip::kLocalSignature);
    put_common(archive, member, crc);
    archive += member.name + member.bytes;
  }
  const auto begin = static_cast<uint32_t>(archive.size());
  archive += directory;
  zip::put(archive, zip::kEndSignature);
  zip::put<uint32_t>(archive, 0);
  zip::put(archive, static_cast<uint16_t>(members.size()));
  zip::put(archive, static_cast<uint16_t>(members.size()));
  zip::put(archive, static_cast<uint32_t>(directory.size()));
  zip::put(archive, begin);
  zip::put<uint16_t>(archive, 0);
  return archive;
}

}  // namespace
}  // namespace fsdp::fuzz

// Most results are an archive that is whole, with a pickle or data that were changed inside.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace fsdp::fuzz;
  Random random(seed);
  const std::string archive(reinterpret_cast<const char*>(data), size);
  auto members = read_members(archive);
  if (members.empty() || pick(random, 8) == 0) return store(mutate_text(archive, max_size), data, max_size);
  Member& member = members[pick(random, 2) == 0 ? 0 : pick(random, members.size())];
  if (pick(random, 16) == 0) {
    member.name = mutate_text(member.name, 64);
  } else {
    const bool is_pickle = member.name.ends_with(".pkl");
    member.bytes =
        is_pickle ? mutate_pickle(member.bytes, max_size / 2, random) : mutate_text(member.bytes, max_size / 2);
  }
  return store(write_members(members, pick(random, 2) == 0), data, max_size);
}
