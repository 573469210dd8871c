#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace fsdp {

// Work on a device that was enqueued once and runs again as a whole: a CUDA graph.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // On the current stream, with the memory of the recording: same addresses, whatever is in them now.
  virtual void replay() = 0;
};

// Records into memory of its own: what is allocated meanwhile belongs to its recordings, and nobody else uses it until
// the recorder and they are gone.
class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  // What `work` enqueues on the device, on this thread or on autograd's, without running it. Throws what `work` throws,
  // and where it does what cannot be recorded: waits for the device, or copies from memory that is not pinned.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work) = 0;
};

using MakeWorkRecorder = std::unique_ptr<WorkRecorder> (*)(c10::Device device);

// What a library for a kind of device registers; null takes it away. Thread-safe.
void set_work_recorder(c10::DeviceType type, MakeWorkRecorder make);
// Null for devices whose work cannot be recorded, as the CPU's.
MakeWorkRecorder find_work_recorder(c10::DeviceType type);

}  // namespace fsdp
