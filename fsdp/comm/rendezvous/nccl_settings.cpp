#include "fsdp/comm/rendezvous/nccl_settings.h"

#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace fsdp::comm {
namespace {

// Names from the present one to the oldest.
using Names = std::initializer_list<const char*>;

const char* find(Names names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) return value;
  }
  return nullptr;
}

void set_default(Names names, const std::string& value) {
  if (find(names) == nullptr) setenv(*names.begin(), value.c_str(), 1);
}

}  // namespace

void set_nccl_defaults(const std::string& dump_folder) {
  set_default({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, "2000");
  set_default({"TORCH_NCCL_DUMP_ON_TIMEOUT"}, "1");
  const Names error_handling = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"};
  const char* mode = find(error_handling);
  if (mode == nullptr || std::string_view(mode) == "1") setenv(*error_handling.begin(), "3", 1);
  if (!dump_folder.empty()) {
    set_default({"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}, dump_folder + "/nccl-rank");
  }
}

}  // namespace fsdp::comm
