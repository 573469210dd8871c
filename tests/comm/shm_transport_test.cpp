// The transport of ranks that share a host against Gloo's results for the same inputs, and what becomes of its waits
// when peers die, stop, or change their mind.
#include "fsdp/comm/host/shm_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "fsdp/base/error.h"
#include "fsdp/comm/host/processor_cache.h"
#include "fsdp/comm/transport/gloo_transport.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::comm::shm_transport_test {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = TransferFailure::Kind;
constexpr auto kDeadline = std::chrono::seconds(30);
constexpr int64_t kArenaBytes = int64_t{1} << 30;

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

std::shared_ptr<HostLinks> link(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  HostLinksOptions options;
  options.arena_bytes = kArenaBytes;
  auto links = HostLinks::try_connect(store, rank, size, options);
  if (!links) throw std::runtime_error("threads and forks of one process share no memory");
  return links;
}

// A rank with both ways to the others.
struct Place {
  int rank;
  int size;
  std::shared_ptr<HostLinks> links;
  std::unique_ptr<Transport> shm;
  std::unique_ptr<Transport> gloo;
  uint32_t tag = 0;

  void barrier() {
    const torch::Tensor all = torch::empty({size});
    gloo->all_gather(all, torch::zeros({1}), ++tag)->wait();
  }

  // `values` in ordinary memory or in this rank's arena, `shift` elements behind where it is aligned.
  torch::Tensor hold(const torch::Tensor& values, bool in_arena, int64_t shift = 0) const {
    const int64_t numel = values.numel() + shift;
    torch::Tensor whole = torch::empty({numel}, values.options());
    if (in_arena) {
      const auto arena = links->own_arena();
      const auto bytes = static_cast<int64_t>(whole.nbytes());
      void* slab = arena->take(bytes);
      const auto give_back = [=](void*) { arena->give_back(slab, bytes, SharedArena::Keep::kPages); };
      whole = torch::from_blob(slab, {numel}, give_back, values.options());
    }
    return whole.narrow(0, shift, values.numel()).copy_(values);
  }
};

void run_places(int size, const std::function<void(Place&)>& body, std::chrono::milliseconds deadline = kDeadline) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  testing::run_ranks(size, [&](const World& world) {
    Place place{world.rank, world.size, link(store, world.rank, size), nullptr, nullptr};
    place.shm = make_shm_transport(place.links, first_ranks(size), deadline);
    place.gloo = make_gloo_transport(c10::make_intrusive<c10d::PrefixStore>("gloo", store),
                                     {world.rank, size, kDeadline, "127.0.0.1"});
    body(place);
    place.barrier();
  });
}

torch::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype) {
  const auto generator = testing::generator(700 + static_cast<uint64_t>(rank));
  if (c10::isFloatingType(dtype)) return torch::randn({numel}, generator).to(dtype);
  return torch::randint(-1000, 1000, {numel}, generator, at::kLong).to(dtype);
}

bool has_equal_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.nbytes() != b.nbytes()) return false;
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

struct Case {
  int64_t numel;  // of one shard
  at::ScalarType dtype;
  int64_t shift;
};

void for_each_case(const std::function<void(Place&, const Case&)>& body) {
  for (const int size : {2, 3, 8}) {
    run_places(size, [&](Place& place) {
      for (const int64_t numel : {0, 1, 513, 40001}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
          SCOPED_TRACE(c10::str("rank ", place.rank, " of ", size, ", ", numel, " x ", dtype));
          body(place, {numel, dtype, numel % 2});
        }
      }
    });
  }
}

TEST(ShmTransport, AllGatherGivesWhatGlooGives) {
  for_each_case([](Place& place, const Case& c) {
    const torch::Tensor values = values_of(place.rank, c.numel, c.dtype);
    const torch::Tensor expected = torch::zeros({place.size * c.numel}, c.dtype);
    place.gloo->all_gather(expected, values, ++place.tag)->wait();
    for (const bool in_arena : {false, true}) {
      const torch::Tensor shard = place.hold(values, in_arena, c.shift);
      const torch::Tensor output = place.hold(torch::zeros_like(expected), in_arena, c.shift);
      place.shm->all_gather(output, shard, ++place.tag)->wait();
      EXPECT_TRUE(has_equal_bits(output, expected));

      output.zero_();
      const torch::Tensor own = output.narrow(0, place.rank * c.numel, c.numel);
      own.copy_(shard);
      place.shm->all_gather(output, own, ++place.tag)->wait();
      EXPECT_TRUE(has_equal_bits(output, expected));
    }
  });
}

TEST(ShmTransport, ReduceScatterGivesGloosBits) {
  for_each_case([](Place& place, const Case& c) {
    const torch::Tensor values = values_of(place.rank, place.size * c.numel, c.dtype);
    const torch::Tensor staging = torch::empty({place.gloo->staging_numel(c.numel)}, c.dtype);
    const torch::Tensor expected = torch::empty({c.numel}, c.dtype);
    place.gloo->reduce_scatter(values, expected, staging, Accumulate::kOverwrite, ++place.tag)->wait();
    // The main grad is fp32 whatever travels.
    const torch::Tensor expected_wide = torch::ones({c.numel});
    place.gloo->reduce_scatter(values, expected_wide, staging, Accumulate::kAdd, ++place.tag)->wait();
    for (const bool in_arena : {false, true}) {
      const torch::Tensor input = place.hold(values, in_arena, c.shift);
      const torch::Tensor wide = place.hold(torch::ones({c.numel}), in_arena, c.shift);
      place.shm->reduce_scatter(input, wide, torch::Tensor(), Accumulate::kAdd, ++place.tag)->wait();
      EXPECT_TRUE(has_equal_bits(wide, expected_wide));
      EXPECT_TRUE(has_equal_bits(input, values));
      // As an all-reduce does it: the sum takes the place of this rank's slice.
      const torch::Tensor own = input.narrow(0, place.rank * c.numel, c.numel);
      place.shm->reduce_scatter(input, own, torch::Tensor(), Accumulate::kOverwrite, ++place.tag)->wait();
      EXPECT_TRUE(has_equal_bits(own, expected));
    }
    EXPECT_EQ(place.shm->staging_numel(c.numel), 0);
  });
}

// Results that are written past the cache: what is asserted is that they are all there when the call returns.
TEST(ShmTransport, CallsLargerThanTheCache) {
  const int64_t cache = std::min(processor_cache_bytes(), int64_t{256} << 20);
  run_places(2, [&](Place& place) {
    const int64_t numel = cache / 16 + 3;  // six times its 4 bytes an element move
    const torch::Tensor values = values_of(place.rank, 2 * numel, at::kFloat);
    const torch::Tensor theirs = values_of(1 - place.rank, 2 * numel, at::kFloat);
    const torch::Tensor input = place.hold(values, true, 1);
    const torch::Tensor output = torch::empty({2 * numel}), sum = torch::empty({numel});
    place.shm->all_gather(output, input.narrow(0, 0, numel), ++place.tag)->wait();
    EXPECT_TRUE(torch::equal(output.narrow(0, place.rank * numel, numel), values.narrow(0, 0, numel)));
    EXPECT_TRUE(torch::equal(output.narrow(0, (1 - place.rank) * numel, numel), theirs.narrow(0, 0, numel)));
    place.shm->reduce_scatter(input, sum, torch::Tensor(), Accumulate::kOverwrite, ++place.tag)->wait();
    EXPECT_TRUE(torch::equal(sum, (values + theirs).narrow(0, place.rank * numel, numel)));
  });
}

TEST(ShmTransport, BroadcastFromEveryRoot) {
  for_each_case([](Place& place, const Case& c) {
    for (int root = 0; root < place.size; ++root) {
      const bool in_arena = root % 2 == 0;
      const torch::Tensor tensor = place.hold(values_of(place.rank, c.numel, c.dtype), in_arena, c.shift);
      place.shm->broadcast(tensor, root, ++place.tag)->wait();
      EXPECT_TRUE(has_equal_bits(tensor, values_of(root, c.numel, c.dtype))) << "root " << root;
    }
  });
}

// Two calls in flight, waited for in another order on each rank, by one thread: neither waits for the other's wait().
TEST(ShmTransport, RanksNeedNotWaitInTheSameOrder) {
  run_places(3, [](Place& place) {
    constexpr int64_t kNumel = 100000;
    for (int round = 0; round < 4; ++round) {
      const torch::Tensor shard = place.hold(torch::full({kNumel}, static_cast<float>(place.rank)), true);
      const torch::Tensor input = place.hold(torch::full({3 * kNumel}, static_cast<float>(round)), true);
      const torch::Tensor gathered = torch::empty({3 * kNumel});
      const torch::Tensor sum = torch::empty({kNumel});
      auto gather = place.shm->all_gather(gathered, shard, ++place.tag);
      auto reduce = place.shm->reduce_scatter(input, sum, torch::Tensor(), Accumulate::kOverwrite, ++place.tag);
      const bool gather_first = (place.rank + round) % 2 == 0;
      (gather_first ? gather : reduce)->wait();
      (gather_first ? reduce : gather)->wait();
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(gathered[rank * kNumel + 1].item<float>(), rank);
      EXPECT_TRUE(torch::equal(sum, torch::full({kNumel}, 3.0F * static_cast<float>(round))));
    }
  });
}

TEST(ShmTransport, MoreCallsInFlightThanSlots) {
  run_places(2, [](Place& place) {
    constexpr int kCalls = 2 * kSlots + 10;
    std::vector<torch::Tensor> outputs;
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (int call = 0; call < kCalls; ++call) {
      outputs.push_back(torch::empty({2}, at::kInt));
      const torch::Tensor shard = torch::full({1}, 1000 * place.rank + call, at::kInt);
      transfers.push_back(place.shm->all_gather(outputs.back(), shard, ++place.tag));
    }
    for (int call = 0; call < kCalls; ++call) {
      transfers[static_cast<size_t>(call)]->wait();
      EXPECT_EQ(outputs[static_cast<size_t>(call)][1 - place.rank].item<int>(), 1000 * (1 - place.rank) + call);
    }
  });
}

TEST(ShmTransport, GroupsAndThreadsDoNotDisturbEachOther) {
  run_places(4, [](Place& place) {
    const std::vector<int> ranks = place.rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
    const auto pair = make_shm_transport(place.links, ranks, kDeadline);
    std::thread other([&] {
      for (int call = 0; call < 200; ++call) {
        const int64_t numel = 1 + call * 37 % 3000;
        const torch::Tensor output = torch::empty({2 * numel}, at::kInt);
        const torch::Tensor shard = torch::full({numel}, 1000 * place.rank + call, at::kInt);
        pair->all_gather(output, shard, static_cast<uint32_t>(call % 10))->wait();
        for (int peer = 0; peer < 2; ++peer) {
          EXPECT_EQ(output[(peer + 1) * numel - 1].item<int>(), 1000 * ranks[static_cast<size_t>(peer)] + call);
        }
      }
    });
    for (int call = 0; call < 200; ++call) {
      const int64_t numel = 1 + call * 53 % 4000;
      const torch::Tensor output = torch::empty({numel});
      const torch::Tensor input = place.hold(torch::full({4 * numel}, static_cast<float>(place.rank)), call % 3 == 0);
      place.shm
          ->reduce_scatter(input, output, torch::Tensor(), Accumulate::kOverwrite, static_cast<uint32_t>(call % 10))
          ->wait();
      EXPECT_EQ(output[numel - 1].item<float>(), 6.0F);
    }
    other.join();
  });
}

// ---- failures

struct Outcome {
  bool is_complete = true;
  Kind kind = Kind::kOther;
  int peer = -1;
  std::string text;
  Clock::duration took{};
};

Outcome outcome_of(const std::function<void()>& function) {
  Outcome outcome;
  const auto begin = Clock::now();
  try {
    function();
  } catch (const TransferFailure& failure) {
    outcome = {false, failure.kind, failure.peer, failure.what()};
  }
  outcome.took = Clock::now() - begin;
  return outcome;
}

TEST(ShmTransport, ATransferThatIsDroppedLeavesNobodyHanging) {
  for (const bool in_arena : {false, true}) {
    run_places(2, [&](Place& place) {
      constexpr int64_t kNumel = 50000;
      const torch::Tensor shard = place.hold(torch::full({kNumel}, static_cast<float>(place.rank)), in_arena);
      const torch::Tensor output = torch::full({2 * kNumel}, -1.0F);
      if (place.rank == 0) {
        place.shm->all_gather(output, shard, 1).reset();
        place.barrier();
      } else {
        place.barrier();
        const Outcome outcome = outcome_of([&] { place.shm->all_gather(output, shard, 1)->wait(); });
        // Only a copy outlives the call.
        EXPECT_EQ(outcome.is_complete, !in_arena);
        EXPECT_EQ(output[0].item<float>(), in_arena ? -1.0F : 0.0F);
        EXPECT_EQ(outcome.text, in_arena ? "given up by this peer" : "");
        EXPECT_EQ(outcome.peer, in_arena ? 0 : -1);
        EXPECT_LT(outcome.took, std::chrono::seconds(10));
      }
      // Nor is anything kept for readers that do not come.
      place.barrier();
      const torch::Tensor all = torch::empty({2});
      place.shm->all_gather(all, torch::zeros({1}), 2)->wait();
      EXPECT_LE(place.links->own_arena()->in_use_bytes(), in_arena ? kNumel * 4 + SharedArena::kAlignment : 0);
    });
  }
}

TEST(ShmTransport, APlaceOutsideOfThePeersMemoryIsNotRead) {
  for (const int64_t beyond : {int64_t{-4096}, kArenaBytes - 4, kArenaBytes, std::numeric_limits<int64_t>::max()}) {
    run_places(2, [&](Place& place) {
      const torch::Tensor output = torch::full({2 * 512}, -1.0F);
      const auto transfer = place.rank == 0 ? place.shm->all_gather(output, torch::zeros({512}), 1) : nullptr;
      ControlBlock& control = place.links->control(0);
      for (int slot = 0; slot < kSlots && place.rank == 0; ++slot) {
        if (control.keys[slot] != 0) control.slots[slot].offset = beyond;
      }
      place.barrier();
      if (place.rank == 0) return;
      const Outcome outcome = outcome_of([&] { place.shm->all_gather(output, torch::zeros({512}), 1)->wait(); });
      EXPECT_EQ(outcome.text, "posted bytes outside of its memory");
      EXPECT_EQ(outcome.peer, 0);
      EXPECT_EQ(output[0].item<float>(), -1.0F);
    });
  }
}

TEST(ShmTransport, AnotherThreadCanEndAWait) {
  run_places(2, [](Place& place) {
    if (place.rank == 1) return;
    const torch::Tensor output = torch::empty({2});
    const auto transfer = place.shm->all_gather(output, torch::zeros({1}), 1);
    std::thread other([&] { transfer->abort(); });
    const Outcome outcome = outcome_of([&] { transfer->wait(); });
    other.join();
    EXPECT_EQ(outcome.text, "given up by this rank");
    EXPECT_LT(outcome.took, std::chrono::seconds(10));
  });
}

TEST(ShmTransport, AReaderThatStopsInTheMidstIsNamedAtTheDeadline) {
  run_places(
      2,
      [](Place& place) {
        const torch::Tensor shard = place.hold(torch::zeros({50000}), true);
        const torch::Tensor output = torch::empty({100000});
        auto transfer = place.shm->all_gather(output, shard, 1);
        place.barrier();
        if (place.rank == 0) {
          const Outcome outcome = outcome_of([&] { transfer->wait(); });
          EXPECT_EQ(outcome.kind, Kind::kDeadline);
          EXPECT_EQ(outcome.peer, 1);
        } else {
          ControlBlock& poster = place.links->control(0);
          for (int slot = 0; slot < kSlots; ++slot) {
            const uint64_t key = poster.keys[slot].load();
            if (key == 0) continue;
            EXPECT_NE(enter_slot(poster, key, poster.slots[slot].group, 1).slot, nullptr);
          }
        }
        place.barrier();  // its own transfer lives until then
      },
      std::chrono::milliseconds(500));
}

// ---- processes

// Runs `body` in `size` processes and returns their ids; each ends with 0 if `body` returns true.
std::vector<pid_t> fork_ranks(int size, const std::string& store_path, std::chrono::milliseconds deadline,
                              const std::function<bool(Place&)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      bool is_good = false;
      try {
        const auto store = c10::make_intrusive<c10d::FileStore>(store_path, size);
        Place place{rank, size, link(store, rank, size), nullptr, nullptr};
        place.shm = make_shm_transport(place.links, first_ranks(size), deadline);
        is_good = body(place);
      } catch (const std::exception& error) {
        std::cerr << "rank " << rank << ": " << error.what() << std::endl;
      }
      _exit(is_good ? 0 : 1);
    }
    children.push_back(child);
  }
  return children;
}

int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Rank 1 of two gets `signal` between two calls; rank 0 says what became of the second.
void expect_outcome(int signal, std::chrono::milliseconds deadline, Kind kind) {
  const io::TemporaryFolder folder;
  const auto children = fork_ranks(2, (folder / "store").native(), deadline, [&](Place& place) {
    const torch::Tensor shard = place.hold(values_of(place.rank, 50000, at::kFloat), true);
    const torch::Tensor output = torch::empty({100000});
    place.shm->all_gather(output, shard, 1)->wait();
    const torch::Tensor expected = torch::cat({values_of(0, 50000, at::kFloat), values_of(1, 50000, at::kFloat)});
    const bool is_right = has_equal_bits(output, expected);
    if (place.rank == 1) raise(signal);
    const Outcome outcome = outcome_of([&] { place.shm->all_gather(output, shard, 2)->wait(); });
    const bool is_in_time = kind == Kind::kDeadline ? outcome.took >= deadline : outcome.took < deadline;
    return is_right && is_in_time && !outcome.is_complete && outcome.kind == kind && outcome.peer == 1;
  });
  EXPECT_EQ(exit_code(children[0]), 0);
  kill(children[1], SIGKILL);
  EXPECT_EQ(exit_code(children[1]), -1);
}

TEST(ShmTransport, AKilledPeerIsNoticedAtOnce) { expect_outcome(SIGKILL, std::chrono::seconds(20), Kind::kPeerClosed); }

TEST(ShmTransport, AStoppedPeerIsNamedAtTheDeadline) {
  expect_outcome(SIGSTOP, std::chrono::seconds(2), Kind::kDeadline);
}

// Of this library; other programs use the folder too. A system without the folder has none.
std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  std::error_code no_folder;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", no_folder)) {
    const std::string name = entry.path().filename();
    if (name.find("fsdp") != std::string::npos) names.insert(name);
  }
  return names;
}

// Whether ranks get communication threads must not depend on what they were bound to in between.
TEST(HostLinks, CountTheCoresThatRanksStartedWith) {
  cpu_set_t start;
  ASSERT_EQ(sched_getaffinity(0, sizeof(start), &start), 0);
  run_places(2, [&](Place& place) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t core = 0; CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &start)) CPU_SET(core, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(place.links->num_cores(), CPU_COUNT(&start));
  });
}

TEST(HostLinks, LeaveNoFiles) {
  const auto before = shared_memory_files();  // other programs may have some
  run_places(2, [&](Place& place) {
    const torch::Tensor held = place.hold(torch::zeros({100000}), true);
    EXPECT_THAT(shared_memory_files(), ::testing::UnorderedElementsAreArray(before));
  });
  EXPECT_THAT(shared_memory_files(), ::testing::UnorderedElementsAreArray(before));
}

}  // namespace
}  // namespace fsdp::comm::shm_transport_test
