#include "train/base/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "fsdp/base/environment.h"
#include "fsdp/comm/collectives.h"

namespace fsdp::train {
namespace {

bool overlap(const Cores& a, const Cores& b) {
  Cores both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return !both.empty();
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
  const std::vector<std::string> all = gather_strings(world, to_text(available_cores()));
  std::vector<Cores> cores_of;
  size_t place = 0;
  for (const int rank : ranks_of_this_host(world)) {
    if (rank == world.rank) place = cores_of.size();
    cores_of.push_back(to_cores(all[static_cast<size_t>(rank)]));
  }
  ThreadPlan plan;
  plan.ranks = static_cast<int>(cores_of.size());
  plan.cores = share_of_cores(cores_of, place);
  bool is_shared = false;
  for (size_t other = 0; other < cores_of.size(); ++other) {
    is_shared = is_shared || (other != place && overlap(share_of_cores(cores_of, other), plan.cores));
  }
  const bool may_bind = choice_of<bool>("FSDP_BIND", {{"on", true}, {"off", false}}, true);
  plan.is_bound = plan.ranks > 1 && !is_shared && may_bind && bind_to(plan.cores);
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
