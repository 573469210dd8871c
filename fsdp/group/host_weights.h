#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/comm/comm.h"
#include "fsdp/comm/host/host_links.h"

namespace fsdp {

// The gathered weights of one group, once for all ranks of a host: each rank writes its own shard, all read everything.
// Nobody copies; what ranks tell each other are two counters each, in the same shared memory:
//   finished  this rank reads no version up to this one any more
//   published its shard holds this version
// A shard may be overwritten when all have finished the version before; a version may be read when all have published
// it. Every rank changes weights equally often, which is what makes their counts comparable.
class HostWeights {
 public:
  // COLLECTIVE over `comm`, whose ranks all are on this host, where they have these places. `bytes` of all shards
  // together.
  HostWeights(std::shared_ptr<comm::HostLinks> links, std::vector<int> places, std::shared_ptr<comm::Comm> comm,
              int64_t bytes);
  ~HostWeights();
  HostWeights(const HostWeights&) = delete;
  HostWeights& operator=(const HostWeights&) = delete;

  std::byte* data() const { return data_; }

  // Local: the present version is not read any more, until the next publish().
  void finish_reading();
  // COLLECTIVE in so far as all must have called finish_reading(): the own shard may be written.
  void await_readers(const comm::CallLabel& label);
  // Local: the own shard has the next version.
  void publish();
  // COLLECTIVE likewise for publish(): all shards have this rank's version.
  void await_owners(const comm::CallLabel& label);

 private:
  struct Counters;
  Counters& of(int rank) const;
  void await(const comm::CallLabel& label, const std::function<bool(const Counters&)>& is_here) const;
  void ring_all() const;

  std::shared_ptr<comm::HostLinks> links_;
  std::vector<int> places_;
  std::shared_ptr<comm::Comm> comm_;
  int64_t slab_bytes_ = 0;
  std::byte* slab_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t version_ = 0;
};

}  // namespace fsdp
