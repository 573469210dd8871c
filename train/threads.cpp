#include "train/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>

#include "fsdp/base/error.h"
#include "fsdp/comm/collectives.h"

namespace fsdp::train {
namespace {

bool overlap(const Cores& a, const Cores& b) {
  Cores both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return !both.empty();
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string to_text(const Cores& cores) {
  std::string text;
  for (const int core : cores) text += std::to_string(core) + ' ';
  return text;
}

Cores to_cores(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<int>(stream), {}};
}

bool may_bind() {
  const char* choice = std::getenv("FSDP_BIND");
  const std::string_view text = choice == nullptr ? "on" : choice;
  if (text != "on" && text != "off") {
    throw Error(ErrorCode::kUsage, "[threads] FSDP_BIND: got '" + std::string(text) + "', expected one of: off, on.");
  }
  return text == "on";
}

bool bind_to(const Cores& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace

Cores available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  Cores cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

Cores share_of_cores(const std::vector<Cores>& cores_of, size_t place) {
  const Cores& mine = cores_of[place];
  size_t rivals = 0, before = 0;
  for (size_t rank = 0; rank < cores_of.size(); ++rank) {
    if (!overlap(cores_of[rank], mine)) continue;
    if (cores_of[rank] != mine) return mine;  // somebody has a plan that this is not to disturb
    if (rank < place) ++before;
    ++rivals;
  }
  if (rivals <= 1 || mine.size() < rivals) return mine;
  const auto edge = [&](size_t i) { return mine.begin() + static_cast<std::ptrdiff_t>(i * mine.size() / rivals); };
  return {edge(before), edge(before + 1)};
}

ThreadPlan set_threads(const World& world) {
  const std::string host = host_name() + '\n';
  std::vector<Cores> cores_of;
  size_t place = 0;
  const std::vector<std::string> all = gather_strings(world, host + to_text(available_cores()));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].compare(0, host.size(), host) != 0) continue;
    if (static_cast<int>(rank) == world.rank) place = cores_of.size();
    cores_of.push_back(to_cores(all[rank].substr(host.size())));
  }
  ThreadPlan plan;
  plan.ranks = static_cast<int>(cores_of.size());
  plan.cores = share_of_cores(cores_of, place);
  const bool is_shared = std::any_of(cores_of.begin(), cores_of.end(), [&](const Cores& other) {
    return &other != &cores_of[place] &&
           overlap(share_of_cores(cores_of, static_cast<size_t>(&other - cores_of.data())), plan.cores);
  });
  plan.is_bound = plan.ranks > 1 && !is_shared && may_bind() && bind_to(plan.cores);
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const int wanted = chosen != nullptr ? std::atoi(chosen) : 0;
  plan.threads = wanted > 0 ? wanted : is_shared ? 1 : static_cast<int>(std::max<size_t>(1, plan.cores.size()));
  at::set_num_threads(plan.threads);
  return plan;
}

std::string describe(const ThreadPlan& plan) {
  std::string text =
      std::to_string(plan.ranks) + " rank(s) of this host x " + std::to_string(plan.threads) + " thread(s)";
  if (plan.is_bound) return text + ", each bound to its own core(s)";
  return text + " on " + std::to_string(plan.cores.size()) + " core(s)";
}

}  // namespace fsdp::train
