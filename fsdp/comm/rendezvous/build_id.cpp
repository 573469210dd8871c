#include "fsdp/comm/rendezvous/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fsdp::comm {
namespace {

constexpr size_t kDigits = 16;

size_t round_up(size_t size, size_t alignment) { return (size + alignment - 1) / alignment * alignment; }

std::string to_hex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count && text.size() < kDigits; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

// "" if these notes have none.
std::string find_id(const unsigned char* notes, size_t size, size_t alignment) {
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof(note));
    const size_t name = at + sizeof(note);
    const size_t content = round_up(name + note.n_namesz, alignment);
    if (content + note.n_descsz > size) return "";
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0) {
      return to_hex(notes + content, note.n_descsz);
    }
    at = round_up(content + note.n_descsz, alignment);
  }
  return "";
}

std::string id_of(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader says where as a number
    const auto* notes = reinterpret_cast<const unsigned char*>(object.dlpi_addr + part.p_vaddr);
    const std::string id = find_id(notes, part.p_memsz, part.p_align == 8 ? 8 : 4);
    if (!id.empty()) return id;
  }
  return "none";
}

bool contains(const dl_phdr_info& object, uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    const uintptr_t begin = object.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && address >= begin && address < begin + part.p_memsz) return true;
  }
  return false;
}

// Where the code of the fsdp program is, all but the launcher's.
constexpr std::string_view kProgramLibrary = "/libfsdp_verbs.so";

struct Ids {
  std::string library = "none";
  std::string program;
  std::string program_library;  // "" in other programs
};

// The program comes first.
int visit(dl_phdr_info* object, size_t, void* found) {
  Ids& ids = *static_cast<Ids*>(found);
  if (ids.program.empty()) ids.program = id_of(*object);
  if (contains(*object, reinterpret_cast<uintptr_t>(&visit))) ids.library = id_of(*object);
  if (std::string_view(object->dlpi_name).ends_with(kProgramLibrary)) ids.program_library = "+" + id_of(*object);
  return 0;
}

}  // namespace

std::string build_id() {
  Ids ids;
  dl_iterate_phdr(&visit, &ids);
  return std::string(FSDP_VERSION) + " (library " + ids.library + ", program " + ids.program + ids.program_library +
         ")";
}

}  // namespace fsdp::comm
