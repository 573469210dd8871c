#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace fsdp {

// Where inputs of regions rest between forward and backward in place of their device: in memory of the host,
// page-locked for a GPU. An input is copied out while its region computes, on a stream of its own, and its memory given
// back when the next one comes; in the backward the input of the region before is copied in while a region computes. So
// a device holds those of two regions. One for the regions of a model, which run one after the other; of one device.
// Inputs on the CPU, and small ones, stay. After: save_on_cpu of PyTorch, FSDP1's activation offloading.
class HostInputs {
 public:
  class Item;  // one input

  // Whether put() would move it: on a device that is not the CPU, at least 1 KiB.
  static bool moves(const at::Tensor& input);
  // Begins to copy it out, after what the current stream has been given.
  std::shared_ptr<Item> put(const at::Tensor& input);
  // The input on its device again, for the current stream; begins to copy in the one that was put before. Any number
  // of times.
  at::Tensor take(const std::shared_ptr<Item>& item);

 private:
  const c10::Stream& stream_of(c10::Device device);
  void begin_to_bring(Item& item);
  void let_go();

  std::optional<c10::Stream> stream_;
  std::shared_ptr<Item> leaving_;  // the last one that was put, whose memory on the device is still there
  std::weak_ptr<Item> last_;
};

}  // namespace fsdp
