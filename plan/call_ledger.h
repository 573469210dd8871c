#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/group.h"

namespace fsdp::plan {

enum class CollectiveKind { kGather, kReduceScatter, kAllReduce, kExchange, kMessage };

// Between which ranks.
enum class CollectiveAxis { kShard, kForwardGroup, kReplicate, kTensor, kContext, kExperts, kStages };

enum class CollectiveLoad { kWeights, kGradients, kActivations };

// All calls of one kind in a step of one rank.
struct Collective {
  CollectiveKind kind;
  CollectiveAxis axis;
  CollectiveLoad load;
  RankGroup group;
  bool of_experts = false;  // of weights and gradients: those that ranks along `ep` have different ones of
  int64_t calls = 0;
  int64_t received_bytes = 0;
  int64_t smallest_shard = 0;  // bytes that a rank contributes to a call
  int64_t largest_shard = 0;

  bool same_kind(const Collective& other) const {
    return kind == other.kind && axis == other.axis && load == other.load && of_experts == other.of_experts;
  }
};

// What a step calls: by kind, and in the sums of the runtime's Counters, which activations are not in.
struct CallLedger {
  int64_t gathers = 0;
  int64_t reduces = 0;
  int64_t gather_bytes = 0;  // received by this rank
  int64_t reduce_bytes = 0;
  std::vector<Collective> collectives;

  // `times` calls alike, each of which receives so much.
  void add(const Collective& call, int64_t shard_bytes, int64_t received, int64_t times = 1);
};

// Memory as RotaryAllocator hands it out: slabs by size, none given back.
class Slabs {
 public:
  void take(int64_t bytes);
  void give_back(int64_t bytes);
  int64_t held() const { return held_; }

 private:
  struct SizeClass {
    int64_t in_use = 0;
    int64_t count = 0;
  };
  std::map<int64_t, SizeClass> classes_;
  int64_t held_ = 0;
};

// What one part of a step holds of them now.
class Holding {
 public:
  explicit Holding(Slabs& slabs) : slabs_(slabs) {}
  void take(int64_t bytes) { slabs_.take(bytes), bytes_ += bytes; }
  void give_back(int64_t bytes) { slabs_.give_back(bytes), bytes_ -= bytes; }
  int64_t bytes() const { return bytes_; }

 private:
  Slabs& slabs_;
  int64_t bytes_ = 0;
};

}  // namespace fsdp::plan
