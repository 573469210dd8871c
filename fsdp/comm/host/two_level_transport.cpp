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
  Sequence(
      Level first, Level second, std::function<void()> end = [] {})
      : levels_{std::move(first), std::move(second)}, end_(std::move(end)) {
    begin(levels_[0]);
  }

  void wait() override {
    finish(levels_[0]);
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) throw TransferFailure(TransferFailure::Kind::kOther, -1, "given up by this rank");
      current_.reset();
      begin(levels_[1]);
    }
    finish(levels_[1]);
    end_();
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (current_) current_->abort();
  }

 private:
  // A level counts its own ranks. A call to a peer that is gone may fail as soon as it is made.
  [[noreturn]] static void rethrow(const TransferFailure& failure, const Level& level) {
    const int peer = failure.peer < 0 ? -1 : level.positions->at(static_cast<size_t>(failure.peer));
    throw TransferFailure(failure.kind, peer, failure.what());
  }
  void begin(const Level& level) try { current_ = level.start(); } catch (const TransferFailure& failure) {
    rethrow(failure, level);
  }
  void finish(const Level& level) try { current_->wait(); } catch (const TransferFailure& failure) {
    rethrow(failure, level);
  }

  Level levels_[2];
  std::function<void()> end_;
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

  // Over the network to the rank of the other host that has this one's place, and from there to its neighbours: each
  // byte crosses the network once.
  std::unique_ptr<Transfer> all_to_all(const at::Tensor& output, const at::Tensor& input, const ExchangeCounts& counts,
                                       uint32_t tag) override {
    const size_t hosts = grid_.across.size(), width = grid_.here.size();
    const auto host = static_cast<size_t>(grid_.host), place = static_cast<size_t>(grid_.place);
    const auto count = [&](size_t from_host, size_t from_place, size_t to_host, size_t to_place) {
      return counts[from_host * width + from_place][to_host * width + to_place];
    };
    ExchangeCounts between(hosts, std::vector<int64_t>(hosts)), here(width, std::vector<int64_t>(width));
    // What comes over the network, by host and place it is for; what neighbours have for this rank, by host and place
    // it is from.
    std::vector<int64_t> arriving, arrived;
    int64_t passing = 0;
    for (size_t from = 0; from < hosts; ++from) {
      for (size_t other = 0; other < width; ++other) {
        for (size_t to = 0; to < hosts; ++to) between[from][to] += count(from, place, to, other);
        for (size_t to = 0; to < width; ++to) here[other][to] += count(from, other, host, to);
        arriving.push_back(count(from, place, host, other));
        arrived.push_back(count(from, other, host, place));
        passing += arriving.back();
      }
    }
    const at::Tensor landed = at::empty({passing}, input.options()), sorted = at::empty_like(output);
    const auto to_neighbours = [=, this] {
      return here_->all_to_all(sorted, transposed(landed, arriving, hosts, width), here, tag);
    };
    return std::make_unique<Sequence>(
        Level{[=, this] { return across_->all_to_all(landed, input, between, tag); }, &grid_.across},
        Level{to_neighbours, &neighbours_}, [=] {
          std::vector<int64_t> by_place;
          for (size_t from = 0; from < width; ++from) {
            for (size_t other = 0; other < hosts; ++other) by_place.push_back(arrived[other * width + from]);
          }
          at::Tensor(output).copy_(transposed(sorted, by_place, width, hosts));
        });
  }

 private:
  // Pieces that lie by row and then by column, by column and then by row. counts: of each, [rows * columns].
  static at::Tensor transposed(const at::Tensor& pieces, const std::vector<int64_t>& counts, size_t rows,
                               size_t columns) {
    const std::vector<at::Tensor> list = pieces.split_with_sizes(counts);
    std::vector<at::Tensor> order;
    for (size_t column = 0; column < columns; ++column) {
      for (size_t row = 0; row < rows; ++row) order.push_back(list[row * columns + column]);
    }
    return at::cat(order);
  }

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
