#include "fsdp/cuda/nccl_transport.h"

#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/comm/rendezvous/nccl_settings.h"
#include "kernels/flat/sum_chunks.h"

namespace fsdp::cuda {
namespace {

using comm::Accumulate;
using comm::Transfer;
using comm::TransferFailure;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// It is work of the stream; c10d's watchdog keeps the deadline.
class EnqueuedOnNccl : public Transfer {
 public:
  void wait() override {}
};

class NcclTransport : public comm::Transport {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group, int rank) : group_(std::move(group)), rank_(rank) {}

  std::string name() const override { return "nccl"; }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t) override {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    at::Tensor to = output, from = shard;
    return enqueue(shard.numel(), [&] { group_->_allgather_base(to, from, options); });
  }

  // In place, in this rank's slice of the input, whence it goes to an output that has sums already or another dtype.
  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor&,
                                           Accumulate accumulate, uint32_t) override {
    c10d::ReduceScatterOptions options;
    options.asyncOp = false;
    const bool is_direct = accumulate == Accumulate::kOverwrite && output.scalar_type() == input.scalar_type();
    at::Tensor from = input;
    at::Tensor to = is_direct ? output : input.narrow(0, rank_ * output.numel(), output.numel());
    return enqueue(output.numel(), [&] {
      group_->_reduce_scatter_base(to, from, options);
      if (!is_direct) kernels::sum_chunks(output, {to}, accumulate == Accumulate::kAdd);
    });
  }

  int64_t staging_numel(int64_t) const override { return 0; }

  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.asyncOp = false;
    std::vector<at::Tensor> tensors{tensor};
    return enqueue(tensor.numel(), [&] { group_->broadcast(tensors, options); });
  }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                       const comm::ExchangeCounts& counts, uint32_t) override {
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    const auto self = static_cast<size_t>(rank_);
    std::vector<int64_t> to_others = counts[self], from_others;
    int64_t all = 0;  // a rank that neither sends nor receives takes part too
    for (const std::vector<int64_t>& row : counts) {
      from_others.push_back(row[self]);
      for (const int64_t count : row) all += count;
    }
    at::Tensor to = output, from = input;
    return enqueue(all, [&] { group_->alltoall_base(to, from, from_others, to_others, options); });
  }

  void abort() noexcept override {
    try {
      group_->abort();
    } catch (const std::exception&) {
      // It was to end anyway.
    }
  }

  void shutdown() noexcept override {
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // Likewise; ranks that are gone are told of by their own errors.
    }
  }

 private:
  template <class Call>
  std::unique_ptr<Transfer> enqueue(int64_t numel, const Call& call) {
    try {
      if (numel > 0) call();
    } catch (const std::exception& error) {
      throw TransferFailure(TransferFailure::Kind::kOther, -1, "NCCL: " + first_line(error));
    }
    return std::make_unique<EnqueuedOnNccl>();
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  int rank_;
};

// c10d's options hold NCCL's, whose layout belongs to a version.
void check_headers() {
  const uint64_t theirs = torch::cuda::nccl::version();  // major, minor, patch: 32, 16 and 16 bits
  const uint64_t major = theirs >> 32, minor = theirs >> 16 & 0xffffU;
  FSDP_CHECK(major == NCCL_MAJOR && minor == NCCL_MINOR, "[nccl] LibTorch was built with NCCL ", major, ".", minor,
             ", this library with the headers of ", NCCL_MAJOR, ".", NCCL_MINOR,
             ". Build it with an nccl.h of LibTorch's ",
             "version, which the package nvidia-nccl that belongs to the wheel has.");
}

}  // namespace

std::unique_ptr<comm::Transport> make_nccl_transport(const comm::DeviceGroup& group) {
  check_headers();
  comm::set_nccl_defaults("");
  const c10::cuda::CUDAGuard guard(group.device);
  auto options = c10d::ProcessGroupNCCL::Options::create(group.is_urgent);
  options->timeout = group.deadline;
  options->group_name = "fsdp " + group.name;
  options->config.blocking = 1;
  try {
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options);
    nccl->setBoundDeviceId(group.device);
    nccl->eagerConnectSingleDevice(group.device);
    return std::make_unique<NcclTransport>(std::move(nccl), group.rank);
  } catch (const std::exception& error) {
    FSDP_THROW(kCommunication, "[nccl] rank ", group.rank, " of group ", group.name, " on ", group.device, ": ",
               first_line(error),
               " Each rank needs a GPU of its own (torch::Device(torch::kCUDA, world.local_rank)); ranks ",
               "that share one talk through the host: InitOptions::device_transport = DeviceTransportKind::kHost.");
  }
}

}  // namespace fsdp::cuda
