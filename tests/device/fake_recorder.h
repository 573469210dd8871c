#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace fsdp::testing {

// Lets fake devices record work (base/work_recorder.h) while it lives. Operators run while they are recorded; what they
// made is NaN afterwards, so that only a replay gives it.
class FakeRecorders {
 public:
  FakeRecorders();
  ~FakeRecorders();
  FakeRecorders(const FakeRecorders&) = delete;
  FakeRecorders& operator=(const FakeRecorders&) = delete;
};

// For the device: work that it just did, and the tensors that this made. Kept if something is recorded on it.
void note_work(c10::Device device, std::function<void()> again, std::vector<at::Tensor> results);
// For what a device cannot record; throws c10::Error if something is recorded on it.
void refuse_in_recording(c10::Device device, const std::string& what);

}  // namespace fsdp::testing
