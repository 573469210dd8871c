#include "fsdp/checkpoint/archive/main_weight_feed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/collectives.h"

namespace fsdp {
namespace {

const std::string kDone = "done";

bool includes_rank_zero(const comm::Comm& comm) {
  return std::find(comm.ranks().begin(), comm.ranks().end(), 0) != comm.ranks().end();
}

bool is_whole_here(const ParameterGroup& group) {
  const auto comms = group.main_weight_comms();
  return std::all_of(comms.begin(), comms.end(), [](const auto& comm) { return comm->size() == 1; });
}

// The whole main weight on the ranks that share shards with rank 0; undefined on the others. COLLECTIVE.
at::Tensor gather_main_weight(const ParameterGroup& group) {
  at::Tensor weight = writable(group.main_weight().local());
  const auto comms = group.main_weight_comms();
  // The replicas' parts are the finer ones: together they make a shard.
  for (auto comm = comms.rbegin(); comm != comms.rend(); ++comm) {
    if (*comm == group.links().shard && !includes_rank_zero(**comm)) return {};
    if ((*comm)->size() == 1) continue;
    const at::Tensor part = weight;
    weight = at::empty({part.numel() * (*comm)->size()}, part.options());
    (*comm)->all_gather(weight, part, {"gather for a file", group.unit_name(), ""}).wait();
  }
  return weight;
}

}  // namespace

MainWeightFeed::MainWeightFeed(const World& world, std::vector<std::shared_ptr<ParameterGroup>> groups)
    : world_(world), groups_(std::move(groups)) {}

void MainWeightFeed::gather(size_t index) {
  weight_ = at::Tensor();
  held_ = index;
  weight_ = gather_main_weight(*groups_[index]);
}

at::Tensor MainWeightFeed::take(const GroupMember& member) {
  const auto found = std::find(groups_.begin(), groups_.end(), member.group);
  FSDP_ASSERT(found != groups_.end(), "a group of another module");
  const auto index = static_cast<size_t>(found - groups_.begin());
  if (held_ != index) {
    if (!is_whole_here(*member.group)) broadcast_string(world_, std::to_string(index));
    gather(index);
  }
  const layout::FlatLayout& layout = member.group->layout();
  return weight_.narrow(0, layout.offsets[member.index], layout.numels[member.index]);
}

void MainWeightFeed::lead(const std::function<void()>& action) {
  std::exception_ptr failure;
  try {
    action();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommunication) throw;
    failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  weight_ = at::Tensor();
  held_.reset();
  broadcast_string(world_, kDone);
  if (failure) std::rethrow_exception(failure);
}

void MainWeightFeed::serve() {
  for (std::string order = broadcast_string(world_, ""); order != kDone; order = broadcast_string(world_, "")) {
    gather(std::stoul(order));
    weight_ = at::Tensor();
  }
}

}  // namespace fsdp
