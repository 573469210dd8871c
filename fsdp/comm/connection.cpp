#include "fsdp/comm/connection.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <fstream>
#include <thread>

#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/gloo_transport.h"
#include "fsdp/comm/progress_monitor.h"
#include "fsdp/comm/shm_transport.h"
#include "fsdp/comm/two_level_transport.h"

namespace fsdp::comm {
namespace {

std::string join(const std::vector<int>& ranks, const char* separator) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : separator) + std::to_string(rank);
  return text;
}

// What a rank that published `calls` is doing, or did last.
std::string describe(const std::vector<Progress>& calls) {
  const auto open =
      std::find_if(calls.begin(), calls.end(), [](const Progress& call) { return call.state == CallState::kWaiting; });
  const Progress& progress = open != calls.end() ? *open : calls.back();
  std::string text = progress.state == CallState::kWaiting  ? "it waits in "
                     : progress.state == CallState::kFailed ? "it gave up in "
                                                            : "its last call was ";
  text += progress.label.op;
  if (!progress.label.unit.empty()) text += " of '" + progress.label.unit + "'";
  if (!progress.label.cause.empty()) text += " (" + progress.label.cause + ")";
  return text + ", call " + std::to_string(progress.number);
}

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

Connection::Connection(c10::intrusive_ptr<c10d::Store> store, int rank, int size, ConnectOptions options)
    : store_(std::move(store)), rank_(rank), size_(size), options_(std::move(options)), hosts_(size) {
  if (size_ == 1) return;
  meet();
  share_memory();
  monitor_ = std::make_unique<ProgressMonitor>(store_->clone(), rank_, calls_);
}

Connection::~Connection() = default;

// Everyone writes its name before anyone builds groups, so that a missing rank is named instead of waited for.
void Connection::meet() {
  store_->set("start/" + std::to_string(rank_), to_bytes(std::to_string(getpid())));
  const auto deadline = std::chrono::steady_clock::now() + options_.start_deadline;
  std::vector<int> missing;
  do {
    missing.clear();
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_->check({"start/" + std::to_string(rank)})) missing.push_back(rank);
    }
    if (missing.empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < deadline);
  FSDP_THROW(kCommunication, "[init] rank ", rank_, " of ", size_, ": after ",
             std::chrono::duration<double>(options_.start_deadline).count(),
             " s these ranks have not started: ", join(missing, ", "), ". Start one process for each rank.");
}

std::shared_ptr<Comm> Connection::group(const std::vector<int>& ranks) {
  for (const std::shared_ptr<Comm>& comm : groups_) {
    if (comm->ranks() == ranks) return comm;
  }
  const auto position = std::find(ranks.begin(), ranks.end(), rank_);
  FSDP_ASSERT(position != ranks.end(), "rank ", rank_, " asked for the group ", join(ranks, ","));
  const int group_rank = static_cast<int>(position - ranks.begin());
  std::unique_ptr<Transport> transport = make_transport(ranks, group_rank);
  if (options_.delays.any()) transport = make_delayed_transport(std::move(transport), options_.delays);
  auto comm = std::make_shared<Comm>(weak_from_this(), ranks, group_rank, std::move(transport));
  groups_.push_back(comm);
  return comm;
}

std::unique_ptr<Transport> Connection::make_transport(const std::vector<int>& ranks, int group_rank) {
  if (ranks.size() == 1) return make_null_transport();
  if (const auto places = hosts_.places_of(ranks); !places.empty()) {
    return make_shm_transport(hosts_.links(), places, options_.deadline);
  }
  const std::string name = join(ranks, ",");
  std::optional<HostGrid> grid = hosts_.grid_of(ranks, group_rank);
  if (!grid) return make_gloo(name, ranks, group_rank);
  std::vector<int> across;
  for (const int position : grid->across) across.push_back(ranks[static_cast<size_t>(position)]);
  auto here = make_shm_transport(hosts_.links(), grid->here, options_.deadline);
  auto between = make_gloo(name + "/place" + std::to_string(grid->place), across, grid->host);
  return make_two_level_transport(std::move(*grid), hosts_.links(), std::move(here), std::move(between));
}

std::unique_ptr<Transport> Connection::make_gloo(const std::string& name, const std::vector<int>& ranks,
                                                 int group_rank) {
  GlooOptions gloo{group_rank, static_cast<int>(ranks.size()), options_.deadline, options_.host};
  try {
    return make_gloo_transport(c10::make_intrusive<c10d::PrefixStore>("group/" + name, store_), gloo);
  } catch (const std::exception& error) {
    FSDP_THROW(kCommunication, "[init] rank ", rank_, " cannot connect to ranks ", join(ranks, ", "), " from host '",
               options_.host, "': ", error.what());
  }
}

void Connection::share_memory() {
  if (options_.transport == TransportKind::kGloo) return;
  HostLinksOptions links;
  links.start_deadline = options_.start_deadline;
  hosts_ =
      Hosts::find(c10::make_intrusive<c10d::PrefixStore>("host", store_), rank_, size_, options_.host_label, links);
  FSDP_CHECK(hosts_.all_on_this_host() || options_.transport == TransportKind::kAuto, "[init] rank ", rank_,
             ": transport shm, but the ranks do not all run on one host that lets them share memory. Use ",
             "TransportKind::kAuto or kGloo.");
}

std::string Connection::transport_name() const {
  if (size_ == 1) return "none";
  if (hosts_.all_on_this_host()) return "shm";
  return hosts_.count() < size_ ? "shm + gloo" : "gloo";
}

std::shared_ptr<Comm> Connection::world() {
  std::vector<int> ranks(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return group(ranks);
}

std::string Connection::describe_missing(const CallLabel& label, const std::vector<int>& ranks) {
  if (!monitor_) return "";
  // One publishing period, so that peers that wait like us have said so.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::string text;
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    const std::vector<Progress> calls = monitor_->progress_of(rank);
    const bool is_here = std::any_of(calls.begin(), calls.end(), [&](const Progress& call) {
      return call.label.op == label.op && call.label.unit == label.unit && call.state != CallState::kDone;
    });
    if (is_here) continue;
    if (!text.empty()) text += "; ";
    text += "rank " + std::to_string(rank) + " is missing: ";
    if (calls.empty()) {
      text += "it made no call yet";
      continue;
    }
    text += describe(calls);
  }
  return text.empty() ? "All ranks are in this call; the network is slower than the deadline." : text + ".";
}

int Connection::first_to_die(int lost_rank) {
  if (!monitor_) return lost_rank;
  // Each rank says whom it lost before it gives up, so the chain ends at one that said nothing.
  int first = lost_rank;
  for (int hops = 0; hops < size_; ++hops) {
    const std::optional<int> next = monitor_->loss_of(first);
    if (!next || *next == rank_) break;
    first = *next;
  }
  monitor_->publish_loss(first);
  return first;
}

std::string Connection::describe_loss(int rank) {
  // Time for a rank that gave up by itself to say so.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<Progress> calls = monitor_ ? monitor_->progress_of(rank) : std::vector<Progress>();
  const bool gave_up =
      std::any_of(calls.begin(), calls.end(), [](const Progress& call) { return call.state == CallState::kFailed; });
  return gave_up ? "Before that " + describe(calls) + "." : "It failed, or was stopped; its own output has the cause.";
}

void Connection::publish_calls() {
  if (monitor_) monitor_->publish();
}

void Connection::dump_calls() noexcept {
  if (options_.dump_folder.empty()) return;
  std::ofstream file(options_.dump_folder + "/calls-rank" + std::to_string(rank_) + ".jsonl");
  file << calls_.dump_json();
}

World connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const ConnectOptions& options) {
  World world;
  world.rank = rank;
  world.size = size;
  world.local_rank = rank;
  world.local_size = size;
  world.connection = std::make_shared<Connection>(std::move(store), rank, size, options);
  return world;
}

World connect_alone() { return connect(nullptr, 0, 1); }

}  // namespace fsdp::comm
