#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/host/host_links.h"

namespace fsdp::comm {

// Ranks of a group that stand like a grid: as many on each host, and those of a host one after the other.
struct HostGrid {
  std::vector<int> here;  // places of those of this host, in the group's order
  std::vector<int>
      across;     // positions within the group of those with this rank's place on the other hosts, and its own
  int host = 0;   // this rank's row
  int place = 0;  // and its column
};

// Which ranks of a world run on which host, and the memory that those of this one share. A place is a rank's number
// among the ranks of its host, as in HostLinks.
class Hosts {
 public:
  // Nobody shares anything.
  explicit Hosts(int size = 1);
  // Ranks that may be on one host (the running system's identity and network namespace say so, and `label`, which tests
  // use to split one) must prove it by sharing memory. If some cannot, nobody does, and obstacle() says why. Uses keys
  // of `store` that are not to be used twice. Throws Error(kCommunication). COLLECTIVE.
  static Hosts find(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& label,
                    const HostLinksOptions& options);

  // Null where this rank shares memory with nobody.
  const std::shared_ptr<HostLinks>& links() const { return links_; }
  // Why ranks of one host share no memory, for people: the same on every rank. Empty where no two are on one host, and
  // where they share.
  const std::string& obstacle() const { return obstacle_; }
  int count() const;
  bool all_on_this_host() const { return links_ != nullptr && count() == 1; }
  // Of these global ranks; empty unless all of them share memory with this one.
  std::vector<int> places_of(const std::vector<int>& ranks) const;
  // Of these global ranks, of which `ranks[position]` is this one; nothing unless they form one of several hosts with
  // several ranks each.
  std::optional<HostGrid> grid_of(const std::vector<int>& ranks, int position) const;

 private:
  int host(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int place(int rank) const { return place_of_[static_cast<size_t>(rank)]; }

  std::vector<int> host_of_;   // the first rank of the host
  std::vector<int> place_of_;  // on its host
  int here_ = 0;
  std::shared_ptr<HostLinks> links_;
  std::string obstacle_;
};

}  // namespace fsdp::comm
