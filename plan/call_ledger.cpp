#include "plan/call_ledger.h"

#include <algorithm>

namespace fsdp::plan {

void CallLedger::add(const Collective& call, int64_t shard_bytes, int64_t received, int64_t times) {
  if (call.load == CollectiveLoad::kWeights) gather_bytes += times * received;
  if (call.load == CollectiveLoad::kGradients) reduce_bytes += times * received;
  auto found = std::find_if(collectives.begin(), collectives.end(),
                            [&](const Collective& each) { return each.same_kind(call); });
  if (found == collectives.end()) {
    found = collectives.insert(found, call);
    found->smallest_shard = shard_bytes;
  }
  found->calls += times;
  found->received_bytes += times * received;
  found->smallest_shard = std::min(found->smallest_shard, shard_bytes);
  found->largest_shard = std::max(found->largest_shard, shard_bytes);
}

void Slabs::take(int64_t bytes) {
  if (bytes == 0) return;
  SizeClass& slabs = classes_[bytes];
  if (slabs.in_use++ < slabs.count) return;
  ++slabs.count;
  held_ += bytes;
}

void Slabs::give_back(int64_t bytes) {
  if (bytes > 0) --classes_[bytes].in_use;
}

}  // namespace fsdp::plan
