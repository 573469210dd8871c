#include "tests/device/fake_recorder.h"

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <mutex>

#include "fsdp/graph/work_recorder.h"
#include "tests/device/fake_device.h"

namespace fsdp::testing {
namespace {

struct Work {
  std::function<void()> again;
  std::vector<at::Tensor> results;
};

// What is recorded now; autograd's threads add to it too.
std::mutex mutex;
std::map<c10::DeviceIndex, std::vector<Work>*> recorded_on;

class FakeGraph : public RecordedWork {
 public:
  explicit FakeGraph(std::vector<Work> all) : all_(std::move(all)) {
    for (const Work& work : all_) {
      for (const at::Tensor& result : work.results) {
        if (result.is_floating_point()) on_cpu(result).fill_(NAN);
      }
    }
  }
  void replay() override {
    for (const Work& work : all_) work.again();
  }

 private:
  std::vector<Work> all_;
};

class FakeRecorder : public WorkRecorder {
 public:
  explicit FakeRecorder(c10::Device device) : index_(device.index()) {}

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override {
    std::vector<Work> all;
    const Recording recording(index_, &all);
    work();
    return std::make_unique<FakeGraph>(std::move(all));
  }

 private:
  struct Recording {
    Recording(c10::DeviceIndex device, std::vector<Work>* all) : index(device) {
      const std::lock_guard lock(mutex);
      recorded_on[index] = all;
    }
    ~Recording() {
      const std::lock_guard lock(mutex);
      recorded_on.erase(index);
    }
    c10::DeviceIndex index;
  };

  c10::DeviceIndex index_;
};

std::unique_ptr<WorkRecorder> make_fake_recorder(c10::Device device) { return std::make_unique<FakeRecorder>(device); }

}  // namespace

FakeRecorders::FakeRecorders() { set_work_recorder(c10::kPrivateUse1, &make_fake_recorder); }
FakeRecorders::~FakeRecorders() { set_work_recorder(c10::kPrivateUse1, nullptr); }

void note_work(c10::Device device, std::function<void()> again, std::vector<at::Tensor> results) {
  const std::lock_guard lock(mutex);
  const auto found = recorded_on.find(device.index());
  if (found != recorded_on.end()) found->second->push_back({std::move(again), std::move(results)});
}

void refuse_in_recording(c10::Device device, const std::string& what) {
  const std::lock_guard lock(mutex);
  TORCH_CHECK(recorded_on.count(device.index()) == 0, "operation not permitted while the stream records: ", what);
}

}  // namespace fsdp::testing
