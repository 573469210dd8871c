#include "fsdp/comm/transport/fabric_transport.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "kernels/flat/sum_chunks.h"

namespace fsdp::comm {

class FabricLink {
 public:
  using Clock = std::chrono::steady_clock;
  explicit FabricLink(const FabricModel& model) : model_(model) {}

  // When a transfer that is issued now is over.
  Clock::time_point reserve(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    busy_until_ = std::max(busy_until_, Clock::now()) + model_.time_for(bytes);
    return busy_until_;
  }

 private:
  FabricModel model_;
  std::mutex mutex_;
  Clock::time_point busy_until_;
};

namespace {

class FabricTransfer : public Transfer {
 public:
  // `finish` makes the result.
  FabricTransfer(FabricLink::Clock::time_point end, std::function<void()> finish)
      : end_(end), finish_(std::move(finish)) {}

  void wait() override {
    finish_();
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, end_, [this] { return aborted_; })) {
      throw TransferFailure(TransferFailure::Kind::kOther, -1, "given up by this rank");
    }
  }

  void abort() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
    }
    changed_.notify_all();
  }

 private:
  FabricLink::Clock::time_point end_;
  std::function<void()> finish_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

class FabricTransport : public Transport {
 public:
  FabricTransport(std::shared_ptr<FabricLink> link, int size) : link_(std::move(link)), size_(size) {}

  std::string name() const override { return "fabric"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t) override {
    return transfer(received(shard), [=, size = size_] {
      for (int64_t rank = 0; rank < size; ++rank) {
        at::Tensor slice = output.narrow(0, rank * shard.numel(), shard.numel());
        if (slice.const_data_ptr() != shard.const_data_ptr()) slice.copy_(shard);
      }
    });
  }

  // In place, as its twin on GPUs does it: what is planned without scratch needs none.
  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor&,
                                           Accumulate accumulate, uint32_t) override {
    const at::Tensor own = input.narrow(0, 0, output.numel());
    return transfer(received(own), [=, size = size_] {
      at::Tensor(own).mul_(size);
      if (own.const_data_ptr() != output.const_data_ptr())
        kernels::sum_chunks(output, {own}, accumulate == Accumulate::kAdd);
    });
  }

  int64_t staging_numel(int64_t) const override { return 0; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int, uint32_t) override {
    return transfer(static_cast<int64_t>(tensor.nbytes()), [] {});
  }

  // What comes is what this rank sends, or zeros where it sends less.
  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t) override {
    const int64_t from_others = output.numel() - counts[0][0];
    return transfer(from_others * static_cast<int64_t>(output.element_size()), [=] {
      const int64_t common = std::min(input.numel(), output.numel());
      at::Tensor(output).zero_().narrow(0, 0, common).copy_(input.narrow(0, 0, common));
    });
  }

 private:
  int64_t received(const at::Tensor& shard) const { return static_cast<int64_t>(shard.nbytes()) * (size_ - 1); }
  std::unique_ptr<Transfer> transfer(int64_t bytes, std::function<void()> finish) {
    return std::make_unique<FabricTransfer>(link_->reserve(bytes), std::move(finish));
  }

  std::shared_ptr<FabricLink> link_;
  int size_;
};

}  // namespace

std::shared_ptr<FabricLink> make_fabric_link(const FabricModel& model) { return std::make_shared<FabricLink>(model); }

std::unique_ptr<Transport> make_fabric_transport(std::shared_ptr<FabricLink> link, int size) {
  return std::make_unique<FabricTransport>(std::move(link), size);
}

}  // namespace fsdp::comm
