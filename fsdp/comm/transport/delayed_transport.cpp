#include "fsdp/comm/transport/delayed_transport.h"

#include <thread>
#include <utility>

namespace fsdp::comm {
namespace {

class DelayedTransfer : public Transfer {
 public:
  DelayedTransfer(std::unique_ptr<Transfer> transfer, std::chrono::microseconds delay)
      : transfer_(std::move(transfer)), delay_(delay) {}

  void wait() override {
    std::this_thread::sleep_for(delay_);
    transfer_->wait();
  }
  void abort() noexcept override { transfer_->abort(); }

 private:
  std::unique_ptr<Transfer> transfer_;
  std::chrono::microseconds delay_;
};

class DelayedTransport : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> transport, const TransferDelays& delays)
      : transport_(std::move(transport)), delays_(delays) {}

  std::string name() const override { return transport_->name(); }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) override {
    return std::make_unique<DelayedTransfer>(transport_->all_gather(output, shard, tag), delays_.gather);
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor& staging,
                                           Accumulate accumulate, uint32_t tag) override {
    return std::make_unique<DelayedTransfer>(transport_->reduce_scatter(input, output, staging, accumulate, tag),
                                             delays_.reduce);
  }

  int64_t staging_numel(int64_t shard_numel) const override { return transport_->staging_numel(shard_numel); }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) override {
    return transport_->broadcast(tensor, root, tag);
  }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t tag) override {
    return std::make_unique<DelayedTransfer>(transport_->all_to_all(output, input, counts, tag), delays_.gather);
  }

 private:
  std::unique_ptr<Transport> transport_;
  TransferDelays delays_;
};

}  // namespace

std::unique_ptr<Transport> make_delayed_transport(std::unique_ptr<Transport> transport, const TransferDelays& delays) {
  return std::make_unique<DelayedTransport>(std::move(transport), delays);
}

}  // namespace fsdp::comm
