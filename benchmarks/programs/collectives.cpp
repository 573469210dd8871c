// All-gather and reduce-scatter of 4 KB to 256 MB per rank among the ranks it was launched with, which must share a
// host: through shared memory, through Gloo, and the same bytes copied without any agreement, in turns. Ranks keep to
// cores of their own where there are enough, as in training; Gloo's threads run where they like. Rank 0 prints a table
// and, as its last line, JSON.
//
//   fsdp launch --nproc 2 -- collectives --dtype bf16
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "fsdp/base/units.h"
#include "fsdp/comm/host/shm_transport.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/store.h"
#include "fsdp/comm/transport/gloo_transport.h"

namespace fsdp::benchmarks::collectives_program {
namespace {

using comm::Accumulate;
constexpr auto kDeadline = std::chrono::minutes(2);

struct Options {
  int64_t smallest = 4 * kKiB;  // of one rank's shard
  int64_t largest = 256 * kMiB;
  int rounds = 7;
  double round_ms = 20;  // of one way, at least one call
  std::string dtype = "fp32";
  bool ordinary_memory = false;  // rather than memory of the arenas
};

// One rank, both ways to the others, and memory for the largest call.
class Bench {
 public:
  Bench(const Options& options, const comm::LaunchEnvironment& env)
      : options_(options),
        rank_(env.rank),
        size_(env.size),
        dtype_(options.dtype == "bf16" ? at::kBFloat16 : at::kFloat),
        store_(comm::open_store(env, kDeadline)),
        links_(comm::HostLinks::try_connect(c10::make_intrusive<c10d::PrefixStore>("links", store_), rank_, size_)) {
    if (!links_) throw std::runtime_error("these ranks do not share memory");
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
    shm_ = comm::make_shm_transport(links_, ranks, kDeadline);
    gloo_ = comm::make_gloo_transport(c10::make_intrusive<c10d::PrefixStore>("gloo", store_),
                                      {rank_, size_, kDeadline, "127.0.0.1"});
    // Per rank: the shard, all shards, and what Gloo receives; half of the host's memory is for others.
    const int64_t available = on_rank_zero(available_bytes());
    while (options_.largest > options_.smallest &&
           int64_t{2} * size_ * (2 * size_ + 1) * options_.largest > available) {
      options_.largest /= 2;
    }
    all_ = take(size_ * options_.largest);
    shard_ = take(options_.largest);
    staging_ = at::empty({gloo_->staging_numel(shard_.numel())}, dtype_);
    all_.normal_();  // processors write zeros faster
    shard_.normal_();
    staging_.zero_();
    floor_target_ = all_;
  }

  nlohmann::json run() {
    nlohmann::json rows = nlohmann::json::array();
    for (const char* op : {"all_gather", "reduce_scatter"}) {
      if (rank_ == 0) {
        std::printf("%s, %s, %d ranks\n%12s %12s %12s %12s %8s %10s %10s\n", op, options_.dtype.c_str(), size_, "bytes",
                    "shm us", "gloo us", "floor us", "ratio", "of floor", "shm GB/s");
      }
      for (int64_t bytes = options_.smallest; bytes <= options_.largest; bytes *= 4) rows.push_back(measure(op, bytes));
      if (rank_ == 0) std::printf("\n");
    }
    return rows;
  }

  // Nobody takes the store away from the others.
  void leave() {
    barrier();
    store_->add("left", 1);
    while (rank_ == 0 && store_->add("left", 0) < size_) {
    }
  }

 private:
  using Call = std::function<void()>;

  at::Tensor take(int64_t bytes) {
    const int64_t numel = bytes / static_cast<int64_t>(c10::elementSize(dtype_));
    if (options_.ordinary_memory) return at::empty({numel}, dtype_);
    return at::from_blob(links_->own_arena()->take(bytes), {numel}, dtype_);
  }

  static int64_t available_bytes() {
    std::ifstream file("/proc/meminfo");
    long kib = 0;
    for (std::string line; std::getline(file, line);) {
      if (std::sscanf(line.c_str(), "MemAvailable: %ld", &kib) == 1) break;
    }
    return kib * kKiB;
  }

  int64_t on_rank_zero(int64_t value) {
    const at::Tensor number = at::scalar_tensor(value, at::kLong).view({1});
    shm_->broadcast(number, 0, ++tag_)->wait();
    return number.item<int64_t>();
  }

  double slowest(double value) {
    const at::Tensor values = at::empty({size_}, at::kDouble);
    shm_->all_gather(values, at::full({1}, value, at::kDouble), ++tag_)->wait();
    return values.max().item<double>();
  }

  void barrier() { slowest(0); }

  // Microseconds of one call: the slowest rank's mean over a round.
  double time(const Call& call, int64_t calls) {
    barrier();
    Stopwatch watch;
    for (int64_t i = 0; i < calls; ++i) call();
    return slowest(1e3 * watch.lap() / static_cast<double>(calls));
  }

  // What the call moves, read from where the call reads it.
  void copy(bool gather, int64_t bytes) {
    auto* to = static_cast<char*>(floor_target_.mutable_data_ptr());
    for (int rank = 0; rank < size_; ++rank) {
      const char* from = gather ? source(shard_, rank) : source(all_, rank) + rank_ * bytes;
      std::memcpy(gather ? to + rank * bytes : to, from, static_cast<size_t>(bytes));
    }
  }

  // Where rank `rank` has its counterpart of `tensor`: arenas are filled alike.
  const char* source(const at::Tensor& tensor, int rank) const {
    const auto* own = static_cast<const char*>(tensor.const_data_ptr());
    if (options_.ordinary_memory) return own;
    return reinterpret_cast<const char*>(links_->arena(rank)) + links_->own_arena()->offset_of(own);
  }

  Call make_call(const std::string& op, comm::Transport& transport, int64_t numel) {
    const at::Tensor shard = shard_.narrow(0, 0, numel);
    const at::Tensor all = all_.narrow(0, 0, size_ * numel);
    if (op == "all_gather") return [=, this, &transport] { transport.all_gather(all, shard, next_tag())->wait(); };
    return [=, this, &transport] {
      transport.reduce_scatter(all, shard, staging_, Accumulate::kOverwrite, next_tag())->wait();
    };
  }

  uint32_t next_tag() { return ++tag_ & 0x7fffffU; }

  nlohmann::json measure(const std::string& op, int64_t bytes) {
    const int64_t numel = bytes / static_cast<int64_t>(c10::elementSize(dtype_));
    // A copy that is measured for a sum must not change what is summed.
    floor_target_ = op == "all_gather" ? all_ : shard_;
    const std::map<std::string, Call> calls = {{"shm", make_call(op, *shm_, numel)},
                                               {"gloo", make_call(op, *gloo_, numel)},
                                               {"floor", [=, this] { copy(op == "all_gather", bytes); }}};
    std::map<std::string, std::vector<double>> times;
    std::map<std::string, int64_t> counts;
    for (const auto& [name, call] : calls) {
      time(call, 2);
      const double once = time(call, 1);
      counts[name] = std::clamp<int64_t>(static_cast<int64_t>(1e3 * options_.round_ms / once), 1, 2000);
    }
    for (int round = 0; round < options_.rounds; ++round) {
      for (const auto& [name, call] : calls) times[name].push_back(time(call, counts[name]));
    }
    std::map<std::string, double> median;
    for (auto& [name, values] : times) {
      std::nth_element(values.begin(), values.begin() + options_.rounds / 2, values.end());
      median[name] = values[static_cast<size_t>(options_.rounds / 2)];
    }
    const double rate = static_cast<double>(size_ * bytes) / median["shm"] / 1e3;
    if (rank_ == 0) {
      std::printf("%12s %12.1f %12.1f %12.1f %8.2f %9.0f%% %10.2f\n", format_bytes(bytes).c_str(), median["shm"],
                  median["gloo"], median["floor"], median["gloo"] / median["shm"],
                  100 * median["floor"] / median["shm"], rate);
      std::fflush(stdout);
    }
    return {{"op", op},
            {"bytes", bytes},
            {"shm_us", median["shm"]},
            {"gloo_us", median["gloo"]},
            {"floor_us", median["floor"]}};
  }

  Options options_;
  int rank_;
  int size_;
  at::ScalarType dtype_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<comm::HostLinks> links_;
  std::unique_ptr<comm::Transport> shm_;
  std::unique_ptr<comm::Transport> gloo_;
  at::Tensor all_;
  at::Tensor shard_;
  at::Tensor staging_;
  at::Tensor floor_target_;
  uint32_t tag_ = 0;
};

// Of the cores that this program may run on, one; all of them where ranks are more.
void keep_to_own_core(int rank, int num_ranks) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < num_ranks) return;
  size_t core = 0;
  for (int left = rank; left > 0 || !CPU_ISSET(core, &all); ++core) left -= CPU_ISSET(core, &all) ? 1 : 0;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof(own), &own);
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times collectives between ranks of one host");
  app.add_option("--smallest", options.smallest, "bytes of a rank's shard")->check(CLI::PositiveNumber);
  app.add_option("--largest", options.largest, "bytes of a rank's shard; less if memory is short");
  app.add_option("--rounds", options.rounds, "of which the median counts")->check(CLI::PositiveNumber);
  app.add_option("--dtype", options.dtype, "fp32 or bf16");
  app.add_flag("--ordinary-memory", options.ordinary_memory, "tensors outside of the shared arenas");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto env = comm::read_launch_environment([](const char* name) { return std::getenv(name); });
  if (env.size < 2) throw std::runtime_error("one rank has nobody to talk to: fsdp launch --nproc 2 -- collectives");
  at::set_num_threads(1);
  Bench bench(options, env);
  keep_to_own_core(env.rank, env.size);
  nlohmann::json result;
  result["ranks"] = env.size;
  result["dtype"] = options.dtype;
  result["memory"] = options.ordinary_memory ? "ordinary" : "arena";
  result["calls"] = bench.run();
  if (env.rank == 0) std::printf("%s\n", result.dump().c_str());
  bench.leave();
  return 0;
}

}  // namespace fsdp::benchmarks::collectives_program
