#include "fsdp/comm/host/hosts.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "fsdp/base/check.h"
#include "fsdp/comm/rendezvous/store.h"

namespace fsdp::comm {
namespace {

constexpr std::chrono::milliseconds kLookAgainAfter{2};

// Equal wherever ranks could share memory; not only there.
std::string identity(const std::string& label) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  return boot + "/" + std::filesystem::read_symlink("/proc/self/ns/net", none).native() + "/" + label;
}

// What one of the ranks of the world has to say that have an obstacle; empty if none has.
std::string find_obstacle(c10d::Store& store, int rank, int size, const std::string& own,
                          std::chrono::milliseconds deadline) {
  if (!own.empty()) store.compareSet("obstacle", {}, to_bytes(own));
  store.add("said", 1);
  const auto until = HostLinks::Clock::now() + deadline;
  while (store.add("said", 0) < size) {
    if (HostLinks::Clock::now() >= until) {
      FSDP_THROW(kCommunication, "[init] rank ", rank, ": not all ranks said with whom they share a host.");
    }
    std::this_thread::sleep_for(kLookAgainAfter);
  }
  return store.check({"obstacle"}) ? to_text(store.get("obstacle")) : "";
}

}  // namespace

Hosts::Hosts(int size) : host_of_(static_cast<size_t>(size)), place_of_(static_cast<size_t>(size), 0) {
  std::iota(host_of_.begin(), host_of_.end(), 0);
}

Hosts Hosts::find(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& label,
                  const HostLinksOptions& options) {
  store->set("identity/" + std::to_string(rank), to_bytes(identity(label)));
  Hosts hosts(size);
  std::map<std::vector<uint8_t>, std::vector<int>> ranks_of;
  for (int other = 0; other < size; ++other) {
    std::vector<int>& ranks = ranks_of[store->get("identity/" + std::to_string(other))];
    hosts.place_of_[static_cast<size_t>(other)] = static_cast<int>(ranks.size());
    ranks.push_back(other);
    hosts.host_of_[static_cast<size_t>(other)] = ranks.front();
  }
  hosts.here_ = hosts.host(rank);
  const auto neighbours = static_cast<int>(std::count(hosts.host_of_.begin(), hosts.host_of_.end(), hosts.here_));
  std::string obstacle;
  if (neighbours > 1) {
    const auto own = c10::make_intrusive<c10d::PrefixStore>("links" + std::to_string(hosts.here_), store);
    hosts.links_ = HostLinks::try_connect(own, hosts.place(rank), neighbours, options, &obstacle);
    if (!obstacle.empty() && neighbours < size)
      obstacle += c10::str(" (the one that begins with rank ", hosts.here_, ")");
  }
  obstacle = find_obstacle(*store, rank, size, obstacle, options.start_deadline + options.deadline);
  if (obstacle.empty()) return hosts;
  Hosts apart(size);
  apart.obstacle_ = std::move(obstacle);
  return apart;
}

int Hosts::count() const { return static_cast<int>(std::set<int>(host_of_.begin(), host_of_.end()).size()); }

std::vector<int> Hosts::places_of(const std::vector<int>& ranks) const {
  std::vector<int> places;
  for (const int rank : ranks) {
    if (!links_ || host(rank) != here_) return {};
    places.push_back(place(rank));
  }
  return places;
}

std::optional<HostGrid> Hosts::grid_of(const std::vector<int>& ranks, int position) const {
  size_t width = 1;
  while (width < ranks.size() && host(ranks[width]) == host(ranks[0])) ++width;
  if (!links_ || width == 1 || width == ranks.size() || ranks.size() % width != 0) return std::nullopt;
  std::set<int> rows;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (host(ranks[i]) != host(ranks[i / width * width])) return std::nullopt;
    rows.insert(host(ranks[i]));
  }
  if (rows.size() != ranks.size() / width) return std::nullopt;  // a host twice
  HostGrid grid;
  grid.host = position / static_cast<int>(width);
  grid.place = position % static_cast<int>(width);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (static_cast<int>(i / width) == grid.host) grid.here.push_back(place(ranks[i]));
    if (static_cast<int>(i % width) == grid.place) grid.across.push_back(static_cast<int>(i));
  }
  return grid;
}

}  // namespace fsdp::comm
