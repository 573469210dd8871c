#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/comm/host/hosts.h"
#include "fsdp/comm/liveness/call_log.h"
#include "fsdp/comm/rendezvous/bounded_store.h"
#include "fsdp/comm/rendezvous/launch_environment.h"
#include "fsdp/comm/rendezvous/roster.h"
#include "fsdp/comm/secret/job_secret.h"
#include "fsdp/comm/transport/delayed_transport.h"
#include "fsdp/comm/transport/fabric_transport.h"
#include "fsdp/comm/transport/transport.h"
#include "fsdp/comm/transport/transport_kind.h"
#include "fsdp/mesh/mesh.h"

namespace fsdp::comm {

class ProgressMonitor;
class Waits;

struct ConnectOptions {
  TransportKind transport = TransportKind::kGloo;
  DeviceTransportKind device_transport = DeviceTransportKind::kAuto;
  HostWeightCopies host_weights = HostWeightCopies::kOne;
  std::chrono::milliseconds deadline = std::chrono::minutes(5);
  std::chrono::milliseconds start_deadline = std::chrono::minutes(2);
  // A rank whose process gives no sign of life for this long is lost, and all ranks give up (heartbeat.h). 0: never.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(15);
  StoreHost store_host = StoreHost::kLauncher;
  JobSecret secret;                // the links of the job prove it to each other
  std::string settings;            // must be equal on all ranks: nothing, or a hash of what the program was told
  std::string host = "127.0.0.1";  // this host, as the other ranks reach it
  // Ranks share memory with those only that say the same: tests split one host with it.
  std::string host_label;
  // Where the log of calls goes when one fails: calls-rank<N>.jsonl. Empty: nowhere.
  std::string dump_folder;
  // Tests only.
  TransferDelays delays;  // of this rank's transfers
  std::string build;      // what this rank says it runs; empty: build_id()
  // connect_fabric(): there are no other ranks.
  std::optional<FabricModel> fabric;
};

// One rank's membership of a job: the store, the log of calls, the progress it publishes, the watch over the other
// ranks, and the groups made from it. Groups and transports live as long as the connection; nothing of it is ever
// static.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(c10::intrusive_ptr<c10d::Store> store, int rank, int size, ConnectOptions options);
  // Calls close().
  ~Connection();

  // Leaves the groups of devices in order, or at once where ranks were lost. COLLECTIVE; must come before the device's
  // runtime goes away at the end of the process, which the last copy of a World in main() does. Call once at most;
  // tensors of a device may not be passed afterwards.
  void close();

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds deadline() const { return options_.deadline; }
  // "shm", "gloo", "shm + gloo" (within hosts and between them), or "none" in a world of one,
  // "fabric" where the other ranks do not exist. Of the host.
  std::string transport_name() const;
  const Hosts& hosts() const { return hosts_; }
  HostWeightCopies host_weights() const { return options_.host_weights; }
  CallLog& calls() { return calls_; }

  // The group of these global ranks (which include this one), made at first use. COLLECTIVE over them. Groups of one
  // set of ranks share their transport on the host.
  std::shared_ptr<Comm> group(const std::vector<int>& ranks, Purpose purpose = Purpose::kGather);
  std::shared_ptr<Comm> world();

  // What this rank waits for; ends when a rank is lost.
  const std::shared_ptr<Waits>& waits() const { return waits_; }

  // Of each of `ranks` that is not waiting in this rank's call `number`, `label`, too: what it did last, as far as it
  // told the store, or how many bytes it has for that call.
  std::string describe_missing(int64_t number, const CallLabel& label, const std::vector<int>& ranks);
  // Why all ranks have to give up, if this one or the store knows of a loss: sentences that name the culprit.
  std::optional<std::string> find_loss();
  // `rank` closed its connection: tells the other ranks, whose waits end then too. What find_loss() says from now on.
  std::string report_closed(int rank);
  // Tells the store now what the calls of this rank are.
  void publish_calls();
  // For Comm::open(): connects the ranks of `comm`. COLLECTIVE over them.
  std::shared_ptr<Transport> make_device_transport(const Comm& comm, c10::Device device);

  // Writes the log of calls to the dump folder, if there is one. Never throws. Thread-safe.
  void dump_calls() noexcept;
  void set_dump_folder(std::string folder);

 private:
  void meet();
  void watch();
  void share_memory();
  std::unique_ptr<Transport> make_transport(const std::vector<int>& ranks, int group_rank);
  std::unique_ptr<Transport> connect_on_device(const Comm& comm, c10::Device device);
  std::unique_ptr<Transport> make_gloo(const std::string& name, const std::vector<int>& ranks, int group_rank);
  void let_others_hear();
  void give_up(const std::string& reason);

  c10::intrusive_ptr<c10d::Store> store_;  // null in a world of one
  int rank_;
  int size_;
  ConnectOptions options_;
  CallLog calls_;
  Hosts hosts_;
  std::vector<std::shared_ptr<Comm>> groups_;
  std::shared_ptr<FabricLink> fabric_link_;
  std::mutex device_mutex_;
  std::vector<std::shared_ptr<Transport>> on_devices_;  // in the order in which all ranks made them
  std::shared_ptr<Waits> waits_;
  std::mutex dump_mutex_;
  std::once_flag others_heard_;
  // Empty in a world of one.
  std::unique_ptr<BoundedStore> bounded_store_;
  Roster roster_;
  std::unique_ptr<ProgressMonitor> monitor_;
};

// Joins ranks that share `store`: the building block below fsdp::init(), also for ranks that are threads of one process
// (with a c10d::HashStore). COLLECTIVE.
World connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const ConnectOptions& options = {});

// A world of one.
World connect_alone();

// Rank 0 of `size` ranks that do not exist, over a network of this model (fabric_transport.h): what such a rank
// computes, moves and waits for can be measured alone. Its numbers mean nothing. Local.
World connect_fabric(int size, const FabricModel& model);

}  // namespace fsdp::comm
