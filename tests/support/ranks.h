#pragma once

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/comm/connection.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp::testing {

inline constexpr auto kTestDeadline = std::chrono::seconds(30);

// Runs `body` on `size` ranks, which are threads of this process over Gloo on loopback and connect as `options_of`
// their number, and returns when all have ended. A rank that ends well keeps its links until all have ended: gathers of
// others may be ahead of what they read. Rethrows the failure of the lowest rank that failed.
inline void run_ranks_with(int size, const std::function<comm::ConnectOptions(int rank)>& options_of,
                           const std::function<void(const World&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  std::barrier ended(size);
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        const World world = size == 1 ? comm::connect_alone() : comm::connect(store, rank, size, options_of(rank));
        body(world);
        ended.arrive_and_wait();
      } catch (const std::exception& error) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
        std::cerr << "rank " << rank << " of " << size << " failed: " << error.what() << std::endl;
        ended.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// FSDP_TEST_TRANSPORT: "gloo" (default), "shm", "shm-copies" for one copy of gathered weights on each rank, or
// "two-level" for the same on two hosts, as far as ranks know.
inline std::string transport_name() {
  const char* choice = std::getenv("FSDP_TEST_TRANSPORT");
  return choice == nullptr ? "gloo" : choice;
}

inline void choose_transport(comm::ConnectOptions& options, int rank = 0, int size = 1) {
  const std::string name = transport_name();
  if (name == "gloo") return;
  options.transport = name == "two-level" ? TransportKind::kAuto : TransportKind::kShm;
  if (name == "two-level" && 2 * rank >= size) options.host_label = "second";
  options.host_weights = name == "shm" ? HostWeightCopies::kOne : HostWeightCopies::kPerRank;
}

// Whether ranks of these tests share one copy of gathered weights, so that nothing is gathered.
inline bool one_copy_of_weights() {
  comm::ConnectOptions options;
  choose_transport(options);
  return options.transport == TransportKind::kShm && options.host_weights == HostWeightCopies::kOne;
}

inline void run_ranks(int size, const std::function<void(const World&)>& body,
                      std::chrono::milliseconds deadline = kTestDeadline) {
  const auto options_of = [&](int rank) {
    comm::ConnectOptions options;
    options.deadline = deadline;
    choose_transport(options, rank, size);
    return options;
  };
  run_ranks_with(size, options_of, body);
}

// One for all instances of make_seeded: a rank may be ahead by one call.
inline std::mutex global_generator_mutex;

// Builds something with torch's global generator, which threads share: same seed, same values, on every rank. Not while
// another rank may be in a backward that recomputes, which sets that generator.
template <class Make>
auto make_seeded(uint64_t seed, Make make) {
  const std::lock_guard lock(global_generator_mutex);
  torch::manual_seed(seed);
  return make();
}

// A generator of this thread's own.
inline at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

}  // namespace fsdp::testing
