#include "fsdp/graph/work_recorder.h"

#include <array>
#include <atomic>

namespace fsdp {
namespace {

std::atomic<MakeWorkRecorder>& maker_for(c10::DeviceType type) {
  static std::array<std::atomic<MakeWorkRecorder>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> makers{};
  return makers.at(static_cast<size_t>(type));
}

}  // namespace

void set_work_recorder(c10::DeviceType type, MakeWorkRecorder make) { maker_for(type) = make; }

MakeWorkRecorder find_work_recorder(c10::DeviceType type) { return maker_for(type); }

}  // namespace fsdp
