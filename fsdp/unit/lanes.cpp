#include "fsdp/unit/lanes.h"

#include "fsdp/comm/comm_thread.h"
#include "fsdp/comm/connection.h"
#include "fsdp/comm/host/host_links.h"
#include "fsdp/comm/stream_lane.h"

namespace fsdp {
namespace {

const char* thread_name(LaneUse use) {
  switch (use) {
    case LaneUse::kGathers:
      return "gather thread";
    case LaneUse::kReductions:
      return "reduce thread";
    case LaneUse::kBoth:
      return "comm thread";
  }
  return "";
}

}  // namespace

std::shared_ptr<comm::Lane> make_lane(const World& world, c10::Device device, LaneUse use) {
  if (!device.is_cpu()) {
    const bool is_urgent = use != LaneUse::kReductions;
    return std::make_shared<comm::StreamLane>(device,
                                              is_urgent ? comm::StreamPriority::kHigh : comm::StreamPriority::kNormal);
  }
  if (world.size == 1) return nullptr;
  // Over shared memory a communication thread only computes (copies, sums), so it needs a core of its own.
  const comm::Hosts& hosts = world.connection->hosts();
  if (hosts.all_on_this_host() && hosts.links()->num_cores() < 2 * hosts.links()->size()) return nullptr;
  return std::make_shared<comm::CommThread>(thread_name(use));
}

}  // namespace fsdp
