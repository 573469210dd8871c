#include "fsdp/comm/transport/staged_transport.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace fsdp::comm {
namespace {

class StagedTransfer : public Transfer {
 public:
  // `from`, on the host, goes to `to` when the transfer is complete; `kept` is memory that it uses.
  StagedTransfer(std::unique_ptr<Transfer> transfer, at::Tensor from, at::Tensor to, std::vector<at::Tensor> kept)
      : transfer_(std::move(transfer)), from_(std::move(from)), to_(std::move(to)), kept_(std::move(kept)) {}

  void wait() override {
    transfer_->wait();
    to_.copy_(from_);
  }
  void abort() noexcept override { transfer_->abort(); }

 private:
  std::unique_ptr<Transfer> transfer_;
  at::Tensor from_;
  at::Tensor to_;
  std::vector<at::Tensor> kept_;
};

class StagedTransport : public Transport {
 public:
  StagedTransport(std::shared_ptr<Transport> host, c10::Device device) : host_(std::move(host)), device_(device) {}

  std::string name() const override { return host_->name() + " through host memory"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) override {
    const at::Tensor from = to_host(shard);
    const at::Tensor gathered = on_host(output.numel(), output);
    auto transfer = host_->all_gather(gathered, from, tag);
    return std::make_unique<StagedTransfer>(std::move(transfer), gathered, output, std::vector<at::Tensor>{from});
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor&,
                                           Accumulate accumulate, uint32_t tag) override {
    const at::Tensor from = to_host(input);
    const at::Tensor sum = accumulate == Accumulate::kAdd ? to_host(output) : on_host(output.numel(), output);
    const at::Tensor staging = on_host(host_->staging_numel(output.numel()), input);
    auto transfer = host_->reduce_scatter(from, sum, staging, accumulate, tag);
    return std::make_unique<StagedTransfer>(std::move(transfer), sum, output, std::vector<at::Tensor>{from, staging});
  }

  int64_t staging_numel(int64_t) const override { return 0; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) override {
    const at::Tensor copy = to_host(tensor);
    return std::make_unique<StagedTransfer>(host_->broadcast(copy, root, tag), copy, tensor, std::vector<at::Tensor>{});
  }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t tag) override {
    const at::Tensor from = to_host(input), received = on_host(output.numel(), output);
    return std::make_unique<StagedTransfer>(host_->all_to_all(received, from, counts, tag), received, output,
                                            std::vector<at::Tensor>{from});
  }

 private:
  at::Tensor on_host(int64_t numel, const at::Tensor& like) const {
    return at::empty({numel}, at::TensorOptions().dtype(like.dtype()).pinned_memory(device_.is_cuda()));
  }
  at::Tensor to_host(const at::Tensor& tensor) const {
    at::Tensor copy = on_host(tensor.numel(), tensor);
    copy.copy_(tensor);
    return copy;
  }

  std::shared_ptr<Transport> host_;
  c10::Device device_;
};

}  // namespace

std::unique_ptr<Transport> make_staged_transport(std::shared_ptr<Transport> host, c10::Device device) {
  return std::make_unique<StagedTransport>(std::move(host), device);
}

}  // namespace fsdp::comm
