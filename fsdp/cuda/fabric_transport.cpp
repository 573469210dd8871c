#include "fsdp/cuda/fabric_transport.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "fsdp/cuda/link_clock.h"
#include "kernels/flat/sum_chunks.h"

namespace fsdp::cuda {
namespace {

using comm::Accumulate;
using comm::Transfer;

// Time in a device's memory.
struct Times {
  explicit Times(c10::Device device) : values(at::zeros({1}, at::device(device).dtype(at::kLong))) {}
  unsigned long long* address() const { return static_cast<unsigned long long*>(values.mutable_data_ptr()); }
  at::Tensor values;
};

// The link of a device, for as long as a transport uses it.
std::shared_ptr<Times> link_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::weak_ptr<Times>> links;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Times>& known = links[device.index()];
  std::shared_ptr<Times> link = known.lock();
  if (!link) known = link = std::make_shared<Times>(device);
  return link;
}

// It is work of the stream.
class EnqueuedOnFabric : public Transfer {
 public:
  void wait() override {}
};

class FabricTransport : public comm::Transport {
 public:
  FabricTransport(const comm::DeviceGroup& group, const comm::FabricModel& model)
      : model_(model), device_(group.device), size_(group.size), link_(link_of(device_)), end_(device_) {
    // Streams come to the times without an event.
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
  }

  std::string name() const override { return "fabric"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t) override {
    const int64_t numel = shard.numel();
    begin(static_cast<int64_t>(shard.nbytes()) * (size_ - 1));
    const bool in_place = output.const_data_ptr() == shard.const_data_ptr();
    const int64_t first = in_place ? 1 : 0;
    output.narrow(0, first * numel, (size_ - first) * numel).view({size_ - first, numel}).copy_(shard);
    return end();
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor&,
                                           Accumulate accumulate, uint32_t) override {
    at::Tensor own = input.narrow(0, 0, output.numel());
    begin(static_cast<int64_t>(own.nbytes()) * (size_ - 1));
    own.mul_(size_);
    if (own.const_data_ptr() != output.const_data_ptr()) {
      kernels::sum_chunks(output, {own}, accumulate == Accumulate::kAdd);
    }
    return end();
  }

  int64_t staging_numel(int64_t) const override { return 0; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int, uint32_t) override {
    begin(static_cast<int64_t>(tensor.nbytes()));
    return end();
  }

  // As its twin of the host.
  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                       const comm::ExchangeCounts& counts, uint32_t) override {
    begin((output.numel() - counts[0][0]) * static_cast<int64_t>(output.element_size()));
    const int64_t common = std::min(input.numel(), output.numel());
    at::Tensor(output).zero_().narrow(0, 0, common).copy_(input.narrow(0, 0, common));
    return end();
  }

  // The times go with the transport.
  void shutdown() noexcept override {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      c10::cuda::device_synchronize();
    } catch (const std::exception&) {
      // The device is gone.
    }
  }

 private:
  LinkClock clock() const { return {link_->address(), end_.address()}; }

  void begin(int64_t bytes) const {
    const c10::cuda::CUDAGuard guard(device_);
    const auto duration = static_cast<uint64_t>(model_.time_for(bytes).count());
    C10_CUDA_CHECK(launch_begin_transfer(clock(), duration, c10::cuda::getCurrentCUDAStream()));
  }

  std::unique_ptr<Transfer> end() const {
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(launch_end_transfer(clock(), model_.blocks, c10::cuda::getCurrentCUDAStream()));
    return std::make_unique<EnqueuedOnFabric>();
  }

  comm::FabricModel model_;
  c10::Device device_;
  int64_t size_;
  std::shared_ptr<Times> link_;
  Times end_;
};

}  // namespace

std::unique_ptr<comm::Transport> make_fabric_transport(const comm::DeviceGroup& group, const comm::FabricModel& model) {
  return std::make_unique<FabricTransport>(group, model);
}

}  // namespace fsdp::cuda
