// Laps of what a device computes, without a wait between them.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/support/measure.h"

namespace fsdp::benchmarks {

// "cpu", or the first GPU.
inline c10::Device device_named(const std::string& name) {
  return name == "cpu" ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
}

// On a GPU the marks are events of the current stream, read in collect(); on the CPU the time of the call.
class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device), guard_(device.type()) { mark(""); }

  // Ends a lap of that name, which began at the mark before.
  void mark(std::string name) {
    if (device_.is_cpu()) {
      if (!name.empty())
        ms_[name].push_back(watch_.lap());
      else
        watch_.lap();
      return;
    }
    c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event.record(guard_.getStream(device_));
    marks_.emplace_back(std::move(name), std::move(event));
  }

  // Waits for the device. Milliseconds of the laps since the last call, in their order.
  std::map<std::string, std::vector<double>> collect() {
    if (!device_.is_cpu()) {
      guard_.synchronizeDevice(device_.index());
      for (size_t i = 1; i < marks_.size(); ++i) {
        if (!marks_[i].first.empty()) {
          ms_[marks_[i].first].push_back(marks_[i - 1].second.elapsedTime(marks_[i].second));
        }
      }
      marks_.clear();
    }
    return std::exchange(ms_, {});
  }

  // Milliseconds of each of so many rounds of `work`, after two that are not counted.
  std::vector<double> time(const std::function<void()>& work, int rounds) {
    for (int i = 0; i < 2; ++i) work();
    mark("");
    collect();
    mark("");
    for (int i = 0; i < rounds; ++i) {
      work();
      mark("work");
    }
    return collect().at("work");
  }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  Stopwatch watch_;
  std::deque<std::pair<std::string, c10::Event>> marks_;
  std::map<std::string, std::vector<double>> ms_;
};

}  // namespace fsdp::benchmarks
