#include "fsdp/comm/host/two_level_transport.h"

#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::comm {
namespace {

// Positions in the group of the ranks of one level, for failures.
using Positions = std::vector<int>;

struct Level {
  std::function<std::unique_ptr<Transfer>()> start;
  const Positions* positions;
};

// One level after the other; the first is under way from the start.
class Sequence : public Transfer {
 public:
  Sequence(Level first, Level second) : levels_{std::move(first), std::move(second)} { current_ = levels_[0].start(); }

  void wait() override {
    finish(levels_[0]);
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) throw TransferFailure(TransferFailure::Kind::kOther, -1, "given up by this rank");
      current_.reset();
      current_ = levels_[1].start();
    }
    finish(levels_[1]);
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (current_) current_->abort();
  }

 private:
  void finish(const Level& level) try { current_->wait(); } catch (const TransferFailure& failure) {
    const int peer = failure.peer < 0 ? -1 : level.positions->at(static_cast<size_t>(failure.peer));
    throw TransferFailure(failure.kind, peer, failure.what());
  }

  Level levels_[2];
  std::mutex mutex_;
  std::unique_ptr<Transfer> current_;
  bool aborted_ = false;
};

class TwoLevelTransport : public Transport {
 public:
  TwoLevelTransport(HostGrid grid, std::shared_ptr<HostLinks> links, std::unique_ptr<BlockTransport> here,
                    std::unique_ptr<Transport> across)
      : grid_(std::move(grid)), links_(std::move(links)), here_(std::move(here)), across_(std::move(across)) {
    for (size_t place = 0; place < grid_.here.size(); ++place) {
      neighbours_.push_back(grid_.host * static_cast<int>(grid_.here.size()) + static_cast<int>(place));
    }
  }

  std::string name() const override { return here_->name() + " + " + across_->name(); }

  std::unique_ptr<Transfer> all_gather(const at::Tensor& output, const at::Tensor& shard, uint32_t tag) override {
    const at::Tensor mine = take(num_hosts() * shard.numel(), shard.options());
    return std::make_unique<Sequence>(
        Level{[=, this] { return across_->all_gather(mine, shard, tag); }, &grid_.across},
        Level{[=, this] { return here_->all_gather_blocks(output, mine, num_hosts(), tag); }, &neighbours_});
  }

  std::unique_ptr<Transfer> reduce_scatter(const at::Tensor& input, const at::Tensor& output, const at::Tensor& staging,
                                           Accumulate accumulate, uint32_t tag) override {
    const at::Tensor sums = take(num_hosts() * output.numel(), input.options());
    return std::make_unique<Sequence>(
        Level{[=, this] { return here_->reduce_scatter_blocks(input, sums, num_hosts(), tag); }, &neighbours_},
        Level{[=, this] { return across_->reduce_scatter(sums, output, staging, accumulate, tag); }, &grid_.across});
  }

  int64_t staging_numel(int64_t shard_numel) const override { return across_->staging_numel(shard_numel); }

  // Over the network to one rank of each host, which has the place of the root.
  std::unique_ptr<Transfer> broadcast(const at::Tensor& tensor, int root, uint32_t tag) override {
    const int width = static_cast<int>(grid_.here.size());
    const auto to_hosts = [=, this]() -> std::unique_ptr<Transfer> {
      if (grid_.place != root % width) return make_null_transport()->broadcast(tensor, 0, tag);
      return across_->broadcast(tensor, root / width, tag);
    };
    return std::make_unique<Sequence>(
        Level{to_hosts, &grid_.across},
        Level{[=, this] { return here_->broadcast(tensor, root % width, tag); }, &neighbours_});
  }

 private:
  int64_t num_hosts() const { return static_cast<int64_t>(grid_.across.size()); }

  // Memory that this host's ranks read where it lies.
  at::Tensor take(int64_t numel, const at::TensorOptions& options) const {
    const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
    void* slab = links_->own_arena()->take(bytes);
    const auto give_back = [links = links_, bytes](void* memory) {
      links->own_arena()->give_back(memory, bytes, SharedArena::Keep::kPages);
    };
    return at::from_blob(slab, {numel}, give_back, options);
  }

  HostGrid grid_;
  Positions neighbours_;
  std::shared_ptr<HostLinks> links_;
  std::unique_ptr<BlockTransport> here_;
  std::unique_ptr<Transport> across_;
};

}  // namespace

std::unique_ptr<Transport> make_two_level_transport(HostGrid grid, std::shared_ptr<HostLinks> links,
                                                    std::unique_ptr<BlockTransport> here,
                                                    std::unique_ptr<Transport> across) {
  return std::make_unique<TwoLevelTransport>(std::move(grid), std::move(links), std::move(here), std::move(across));
}

}  // namespace fsdp::comm
