#include "fsdp/comm/connection.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "fsdp/base/advice.h"
#include "fsdp/base/check.h"
#include "fsdp/base/fault_point.h"
#include "fsdp/base/lack_of_memory.h"
#include "fsdp/comm/host/shm_transport.h"
#include "fsdp/comm/host/two_level_transport.h"
#include "fsdp/comm/liveness/heartbeat.h"
#include "fsdp/comm/liveness/progress_monitor.h"
#include "fsdp/comm/transport/device_transports.h"
#include "fsdp/comm/transport/gloo_transport.h"
#include "fsdp/comm/transport/link_proof.h"
#include "fsdp/comm/transport/staged_transport.h"
#include "fsdp/comm/transport/waits.h"

namespace fsdp::comm {
namespace {

std::string join(const std::vector<int>& ranks, const char* separator) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : separator) + std::to_string(rank);
  return text;
}

constexpr std::chrono::milliseconds kStorePatience{1000};
// For what ranks that fail together tell the store.
constexpr std::chrono::milliseconds kPublishPause{500};
constexpr std::chrono::milliseconds kLossPause{300};
constexpr std::chrono::milliseconds kConnectionLeavePatience{1000};
constexpr std::chrono::milliseconds kLeavePause{2};
// For asking after many ranks at a failure.
constexpr std::chrono::seconds kAskPatience{10};

// Gloo and c10d's store write to sockets of peers that may be dead.
void ignore_broken_pipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

Connection::Connection(c10::intrusive_ptr<c10d::Store> store, int rank, int size, ConnectOptions options)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      options_(std::move(options)),
      hosts_(size),
      waits_(std::make_shared<Waits>()) {
  if (options_.fabric) fabric_link_ = make_fabric_link(*options_.fabric);
  if (size_ == 1 || options_.fabric) return;
  ignore_broken_pipes();
  bounded_store_ = std::make_unique<BoundedStore>(store_->clone());
  meet();
  watch();
  share_memory();
}

// The process that hosts the store leaves last, within reason: c10d prints a warning wherever a store goes away.
Connection::~Connection() {
  close();
  if (!monitor_) return;
  monitor_.reset();  // tells the others that this rank leaves
  if (rank_ != 0 || options_.store_host != StoreHost::kRankZero || waits_->reason()) return;
  const auto until = std::chrono::steady_clock::now() + kConnectionLeavePatience;
  for (int rank = 1; rank < size_ && std::chrono::steady_clock::now() < until;) {
    const auto note = bounded_store_->get(note_key(rank), kConnectionLeavePatience);
    if (!note) return;
    if (ProgressNote::decode(*note).has_left) {
      ++rank;
    } else {
      std::this_thread::sleep_for(kLeavePause);
    }
  }
}

void Connection::meet() {
  Member self = Member::self(size_);
  if (!options_.build.empty()) self.build = options_.build;
  self.settings = options_.settings;
  roster_ = Roster::meet(*bounded_store_, rank_, self, options_.start_deadline);
}

void Connection::watch() {
  HeartbeatOptions heartbeat{rank_, size_, options_.heartbeat_timeout, "the launcher"};
  if (options_.store_host == StoreHost::kRankZero) heartbeat.store_host = roster_.name(0);
  const auto on_loss = [this](const std::string& reason) {
    give_up(reason);
    dump_calls();
  };
  monitor_ = std::make_unique<ProgressMonitor>(*bounded_store_, calls_, roster_, *waits_, heartbeat, on_loss);
}

// Ends all waits of this rank; those of its devices too.
void Connection::give_up(const std::string& reason) {
  waits_->give_up(reason);
  const std::lock_guard lock(device_mutex_);
  for (const std::shared_ptr<Transport>& transport : on_devices_) transport->abort();
}

void Connection::close() {
  std::vector<std::shared_ptr<Transport>> transports;
  {
    const std::lock_guard lock(device_mutex_);
    transports.swap(on_devices_);
  }
  const bool is_lost = waits_->reason().has_value();
  for (const std::shared_ptr<Transport>& transport : transports) {
    if (is_lost) transport->abort();
    transport->shutdown();
  }
}

std::shared_ptr<Comm> Connection::group(const std::vector<int>& ranks, Purpose purpose) {
  std::shared_ptr<Transport> transport;
  for (const std::shared_ptr<Comm>& comm : groups_) {
    if (comm->ranks() != ranks) continue;
    if (comm->purpose() == purpose) return comm;
    transport = comm->host_;
  }
  const auto position = std::find(ranks.begin(), ranks.end(), rank_);
  FSDP_ASSERT(position != ranks.end(), "rank ", rank_, " asked for the group ", join(ranks, ","));
  const int group_rank = static_cast<int>(position - ranks.begin());
  if (!transport) {
    std::unique_ptr<Transport> made = make_transport(ranks, group_rank);
    if (options_.delays.any()) made = make_delayed_transport(std::move(made), options_.delays);
    transport = std::move(made);
  }
  auto comm = std::make_shared<Comm>(weak_from_this(), ranks, group_rank, purpose, std::move(transport));
  groups_.push_back(comm);
  return comm;
}

std::shared_ptr<Transport> Connection::make_device_transport(const Comm& comm, c10::Device device) {
  std::shared_ptr<Transport> transport = connect_on_device(comm, device);
  const std::lock_guard lock(device_mutex_);
  if (waits_->reason()) transport->abort();
  on_devices_.push_back(transport);
  return transport;
}

std::unique_ptr<Transport> Connection::connect_on_device(const Comm& comm, c10::Device device) {
  if (comm.size() == 1) return make_null_transport();
  const DeviceTransports* native = find_device_transports(device.type());
  DeviceGroup group{device, comm.rank(), comm.size(), "", nullptr, options_.deadline, false};
  group.is_urgent = comm.purpose() == Purpose::kGather;
  group.name = join(comm.ranks(), ",") + (group.is_urgent ? "/gather" : "/reduce");
  if (options_.fabric) {
    FSDP_CHECK(native != nullptr, "[fabric] got tensors of device ", device, ", expected cpu or a GPU.");
    return native->model(group, *options_.fabric);
  }
  const DeviceTransportKind kind = options_.device_transport;
  FSDP_CHECK(native != nullptr || kind != DeviceTransportKind::kNative, "[init] transport native for device ", device,
             ": no library for it is loaded. Use DeviceTransportKind::kAuto or kHost.");
  if (native == nullptr || kind == DeviceTransportKind::kHost) return make_staged_transport(comm.host_, device);
  group.store = c10::make_intrusive<c10d::PrefixStore>("device/" + group.name, store_);
  const std::string place = c10::str("[init] rank ", rank_, " cannot connect ", device, " to those of ranks ",
                                     join(comm.ranks(), ", "), ": ");
  return run_unless_given_up(*waits_, place, [native, group] { return native->connect(group); });
}

std::unique_ptr<Transport> Connection::make_transport(const std::vector<int>& ranks, int group_rank) {
  if (ranks.size() == 1) return make_null_transport();
  if (fabric_link_) return make_fabric_transport(fabric_link_, static_cast<int>(ranks.size()));
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
  const GlooOptions gloo{group_rank, static_cast<int>(ranks.size()), options_.deadline, options_.host};
  const std::string place = c10::str("[init] rank ", rank_, " cannot connect to ranks ", join(ranks, ", "),
                                     " from host '", options_.host, "': ");
  const auto store = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store_);
  return run_unless_given_up(*waits_, place, [gloo, place, store, name, ranks, secret = options_.secret] {
    try {
      auto transport = make_gloo_transport(store, gloo);
      if (secret.is_given()) prove_links(*transport, secret, name, ranks, gloo.rank);
      return transport;
    } catch (const std::exception& error) {
      if (is_lack_of_memory(error)) {
        FSDP_THROW(kMemory, place, "no memory, or no thread: ", error.what(),
                   ". Use more hosts, or fewer ranks of a host, ",
                   "or raise the limits of this user (ulimit -v, ulimit -u).");
      }
      FSDP_THROW(kCommunication, place, error.what());
    }
  });
}

void Connection::share_memory() {
  if (options_.transport == TransportKind::kGloo) return;
  HostLinksOptions links;
  links.start_deadline = options_.start_deadline;
  links.secret = options_.secret;
  const auto store = c10::make_intrusive<c10d::PrefixStore>("host", store_);
  const auto find = [store, rank = rank_, size = size_, label = options_.host_label, links] {
    return Hosts::find(store, rank, size, label, links);
  };
  hosts_ = run_unless_given_up(*waits_, c10::str("[init] rank ", rank_, " cannot find who shares its host: "), find);
  const std::string& obstacle = hosts_.obstacle();
  FSDP_CHECK(hosts_.all_on_this_host() || options_.transport == TransportKind::kAuto, "[init] rank ", rank_,
             ": transport shm, but the ranks do not all run on one host that lets them share memory",
             obstacle.empty() ? "" : ": ", obstacle, ". Use TransportKind::kAuto or kGloo.");
  if (obstacle.empty() || rank_ != 0) return;
  give_advice({"shared memory", c10::str("ranks of one host talk TCP instead of sharing memory, which costs time: ",
                                         obstacle, ". If that is meant, set FSDP_TRANSPORT=gloo.")});
}

std::string Connection::transport_name() const {
  if (size_ == 1) return "none";
  if (fabric_link_) return "fabric";
  if (hosts_.all_on_this_host()) return "shm";
  return hosts_.count() < size_ ? "shm + gloo" : "gloo";
}

std::shared_ptr<Comm> Connection::world() {
  std::vector<int> ranks(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return group(ranks);
}

std::string Connection::describe_missing(int64_t number, const CallLabel& label, const std::vector<int>& ranks) {
  if (!monitor_) return "";
  const int64_t bytes = calls_.bytes_of(number);
  std::this_thread::sleep_for(kPublishPause);
  const auto until = std::chrono::steady_clock::now() + kAskPatience;
  std::string text;
  for (const int rank : ranks) {
    if (rank == rank_) continue;
    const auto note = monitor_->note_of(rank);
    if (!note || std::chrono::steady_clock::now() > until) {
      return text + (text.empty() ? "" : ". ") + "The store does not say what became of rank " + std::to_string(rank) +
             " and those after it.";
    }
    const auto find = [&](bool of_any_size) {
      return std::find_if(note->calls.begin(), note->calls.end(), [&](const Progress& call) {
        return call.label.op == label.op && call.label.unit == label.unit && call.state != CallState::kDone &&
               (of_any_size || call.bytes == bytes);
      });
    };
    if (find(false) != note->calls.end()) continue;
    const auto other = find(true);
    const std::string does = other == note->calls.end()
                                 ? "is missing: " + note->describe()
                                 : c10::str("is in it with ", other->bytes, " bytes, this one with ", bytes,
                                            ": ranks must pass tensors of equal sizes");
    text += (text.empty() ? "" : "; ") + c10::str("rank ", rank, " ", does, " (", roster_.place(rank), ")");
  }
  return text.empty() ? "All ranks are in this call; the network is slower than the deadline." : text + ".";
}

std::optional<std::string> Connection::find_loss() {
  std::optional<std::string> loss = waits_->reason();
  if (!loss && bounded_store_) loss = Heartbeat::first_loss(*bounded_store_, kStorePatience);
  if (!loss) return std::nullopt;
  give_up(*loss);
  let_others_hear();
  return loss;
}

std::string Connection::report_closed(int rank) {
  // Time for a rank that gave up by itself to say so.
  std::this_thread::sleep_for(kLossPause);
  const ProgressNote note = monitor_ ? monitor_->note_of(rank).value_or(ProgressNote{}) : ProgressNote{};
  const std::string place = roster_.place(rank);
  std::string reason = c10::str("rank ", rank, " closed its connection", place.empty() ? "" : " (" + place + ")", ". ");
  const std::string call = note.last_call();
  if (note.gave_up()) {
    reason += "Before that " + note.describe() + ".";
  } else {
    reason += (call.empty() ? "" : "Its last known call was " + call + ". ") +
              (note.has_left ? "It ended by itself; its own output has the cause."
                             : "It crashed or was killed; its own output or its launcher has the cause.");
  }
  const bool is_hosted_by_rank = rank != 0 && options_.store_host == StoreHost::kRankZero;
  if (bounded_store_ && is_hosted_by_rank && !bounded_store_->get(note_key(rank), kStorePatience)) {
    // Then `rank` most likely left because of rank 0, and cannot say so any more.
    reason = roster_.name(0) + ", which hosts the store of the job, is gone: the store does not answer, and " + reason;
  }
  if (bounded_store_) reason = Heartbeat::publish_loss(*bounded_store_, reason, kStorePatience);
  give_up(reason);
  let_others_hear();
  return reason;
}

// If this rank's process takes the store along, the others have read from it by then why.
void Connection::let_others_hear() {
  if (rank_ != 0 || options_.store_host != StoreHost::kRankZero) return;
  std::call_once(others_heard_, [this] {
    std::this_thread::sleep_for(2 * heartbeat_period(options_.heartbeat_timeout) + kPublishPause);
  });
}

void Connection::publish_calls() {
  if (monitor_) monitor_->publish();
}

void Connection::set_dump_folder(std::string folder) {
  const std::lock_guard lock(dump_mutex_);
  options_.dump_folder = std::move(folder);
}

void Connection::dump_calls() noexcept {
  const std::lock_guard lock(dump_mutex_);
  if (options_.dump_folder.empty()) return;
  const std::string path = options_.dump_folder + "/calls-rank" + std::to_string(rank_) + ".jsonl";
  ::unlink(path.c_str());  // of an earlier failure; a link would send the text elsewhere
  std::FILE* const file = std::fopen(path.c_str(), "wxe");
  if (file == nullptr) return;
  std::fputs(calls_.dump_json().c_str(), file);
  std::fclose(file);
}

World connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const ConnectOptions& options) {
  World world;
  world.rank = rank;
  world.size = size;
  world.local_rank = rank;
  world.local_size = size;
  world.connection = std::make_shared<Connection>(std::move(store), rank, size, options);
  fault_point("init.connected");
  return world;
}

World connect_alone() { return connect(nullptr, 0, 1); }

World connect_fabric(int size, const FabricModel& model) {
  FSDP_CHECK(size >= 1 && model.bytes_per_second > 0, "[fabric] got ", size, " ranks and ", model.bytes_per_second,
             " bytes per second, expected at least 1 of each.");
  ConnectOptions options;
  options.fabric = model;
  World world = connect(nullptr, 0, size, options);
  world.local_size = 1;
  return world;
}

}  // namespace fsdp::comm
