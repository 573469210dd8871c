#include "fsdp/checkpoint/file_names.h"

#include <charconv>
#include <cstdio>

#include "fsdp/base/check.h"
#include "io/base/error.h"

namespace fsdp::checkpoint {

std::string file_name(int rank, int world_size) {
  char text[64];
  std::snprintf(text, sizeof(text), "rank-%05d-of-%05d.safetensors", rank, world_size);
  return text;
}

int64_t step_of(const std::filesystem::path& folder) {
  const std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();  // "step-1/"
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const bool named = name.rfind("step-", 0) == 0 && name.size() > 5 &&
                     std::from_chars(name.data() + 5, end, step).ptr == end && step >= 0 &&
                     name == "step-" + std::to_string(step);
  FSDP_CHECK(named, "[checkpoint] folder: got ", io::in_quotes(folder.string()),
             ", expected a name such as 'step-100', the number of optimizer steps done.");
  return step;
}

}  // namespace fsdp::checkpoint
