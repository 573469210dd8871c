#include "fsdp/comm/transport/gloo_transport.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <mutex>
#include <utility>
#include <vector>

#include "fsdp/base/lack_of_memory.h"
#include "kernels/flat/sum_chunks.h"

namespace fsdp::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct PeerWork {
  int peer;
  WorkPtr work;
};

// In a handler.
[[noreturn]] void rethrow_as_failure(int peer, const std::exception& error) {
  if (is_lack_of_memory(error)) throw;
  const std::string text = error.what();
  auto kind = TransferFailure::Kind::kOther;
  for (const char* sign : {"closed by peer", "reset by peer", "Broken pipe", "Connection refused"}) {
    if (text.find(sign) != std::string::npos) kind = TransferFailure::Kind::kPeerClosed;
  }
  if (text.find("imed out") != std::string::npos) kind = TransferFailure::Kind::kDeadline;
  throw TransferFailure(kind, peer, text.substr(0, text.find('\n')));
}

class GlooTransfer : public Transfer {
 public:
  void add(int peer, WorkPtr work) { works_.push_back({peer, std::move(work)}); }

  void wait() override {
    for (PeerWork& item : works_) {
      bool complete = false;
      try {
        complete = item.work->wait();
      } catch (const std::exception& error) {
        rethrow_as_failure(item.peer, error);
      }
      if (!complete) throw TransferFailure(TransferFailure::Kind::kOther, item.peer, "given up by this rank");
    }
    finish();
  }

  void abort() noexcept override {
    for (const PeerWork& item : works_) item.work->abort();
  }

 protected:
  virtual void finish() {}

 private:
  std::vector<PeerWork> works_;
};

// Adds the received chunks once all are there.
class GlooReduction : public GlooTransfer {
 public:
  GlooReduction(at::Tensor output, Accumulate accumulate) : output_(std::move(output)), accumulate_(accumulate) {}
  void add_chunk(at::Tensor chunk) { chunks_.push_back(std::move(chunk)); }

 protected:
  void finish() override { kernels::sum_chunks(output_, chunks_, accumulate_ == Accumulate::kAdd); }

 private:
  at::Tensor output_;
  Accumulate accumulate_;
  std::vector<at::Tensor> chunks_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  std::string name() const override { return "gloo"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) override {
    auto transfer = std::make_unique<GlooTransfer>();
    const int64_t numel = shard.numel();
    if (numel > 0) {
      for (int step = 1; step < size_; ++step) {
        const int peer = (rank_ + step) % size_;
        receive(*transfer, output.narrow(0, peer * numel, numel), peer, tag);
      }
      for (int step = 1; step < size_; ++step) send(*transfer, shard, (rank_ + step) % size_, tag);
      at::Tensor own = output.narrow(0, rank_ * numel, numel);
      if (own.const_data_ptr() != shard.const_data_ptr()) own.copy_(shard);
    }
    return transfer;
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor& staging,
                                           Accumulate accumulate, uint32_t tag) override {
    auto transfer = std::make_unique<GlooReduction>(output, accumulate);
    const int64_t numel = output.numel();
    if (numel == 0) return transfer;
    int64_t slot = 0;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) {
        transfer->add_chunk(input.narrow(0, rank_ * numel, numel));
        continue;
      }
      const at::Tensor chunk = staging.narrow(0, slot++ * numel, numel);
      receive(*transfer, chunk, peer, tag);
      transfer->add_chunk(chunk);
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      send(*transfer, input.narrow(0, peer * numel, numel), peer, tag);
    }
    return transfer;
  }

  int64_t staging_numel(int64_t shard_numel) const override { return (size_ - 1) * shard_numel; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) override {
    auto transfer = std::make_unique<GlooTransfer>();
    if (tensor.numel() == 0) return transfer;
    if (rank_ != root) {
      receive(*transfer, tensor, root, tag);
    } else {
      for (int step = 1; step < size_; ++step) send(*transfer, tensor, (rank_ + step) % size_, tag);
    }
    return transfer;
  }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t tag) override {
    auto transfer = std::make_unique<GlooTransfer>();
    std::vector<at::Tensor> from(static_cast<size_t>(size_)), to(from.size());
    int64_t received = 0, sent = 0;
    const auto self = static_cast<size_t>(rank_);
    for (size_t peer = 0; peer < from.size(); ++peer) {
      from[peer] = output.narrow(0, received, counts[peer][self]);
      to[peer] = input.narrow(0, sent, counts[self][peer]);
      received += counts[peer][self];
      sent += counts[self][peer];
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const at::Tensor& piece = from[static_cast<size_t>(peer)];
      if (piece.numel() > 0) receive(*transfer, piece, peer, tag);
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const at::Tensor& piece = to[static_cast<size_t>(peer)];
      if (piece.numel() > 0) send(*transfer, piece, peer, tag);
    }
    from[self].copy_(to[self]);
    return transfer;
  }

 private:
  void receive(GlooTransfer& transfer, const at::Tensor& tensor, int peer, uint32_t tag) {
    std::vector<at::Tensor> tensors{tensor};
    const std::lock_guard lock(mutex_);
    try {
      transfer.add(peer, group_->recv(tensors, peer, static_cast<int>(tag)));
    } catch (const std::exception& error) {
      rethrow_as_failure(peer, error);
    }
  }

  void send(GlooTransfer& transfer, const at::Tensor& tensor, int peer, uint32_t tag) {
    std::vector<at::Tensor> tensors{tensor};
    const std::lock_guard lock(mutex_);
    try {
      transfer.add(peer, group_->send(tensors, peer, static_cast<int>(tag)));
    } catch (const std::exception& error) {
      rethrow_as_failure(peer, error);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int rank_;
  int size_;
  std::mutex mutex_;  // the process group counts its calls without a lock
};

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.deadline);
  gloo_options->threads = 1;  // sends and receives are served by the device's own thread
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo_options);
  return std::make_unique<GlooTransport>(std::move(group), options.rank, options.size);
}

}  // namespace fsdp::comm
