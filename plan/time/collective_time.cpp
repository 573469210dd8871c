#include "plan/time/collective_time.h"

#include <algorithm>
#include <cmath>

namespace fsdp::plan::time {
namespace {

double hops_us(int nodes, int in_node, const Hardware& hardware) {
  switch (hardware.hops) {
    case Hops::kNone:
      return 0;
    case Hops::kRing:
      return (nodes - 1) * hardware.network.hop_us + nodes * (in_node - 1) * hardware.node.hop_us;
    case Hops::kTree:
      return std::ceil(std::log2(nodes)) * hardware.network.hop_us +
             std::ceil(std::log2(in_node)) * hardware.node.hop_us;
  }
  return 0;
}

}  // namespace

RankGroup RankGroup::neighbours(int size, int ranks_per_node) { return {size, std::min(size, ranks_per_node)}; }

RankGroup RankGroup::strided(int size, int stride, int ranks_per_node) {
  return {size, std::min(size, std::max(1, ranks_per_node / stride))};
}

Transfer scatter_or_gather(int64_t bytes, const RankGroup& group, const Hardware& hardware) {
  if (group.size == 1 || bytes == 0) return {};
  const int nodes = (group.size + group.in_node - 1) / group.in_node;
  double rate = hardware.node.bytes_per_second;
  if (nodes > 1) {
    const double cards = group.in_node * hardware.network.bytes_per_second;
    rate = group.in_node > 1 ? std::min(rate, cards) : cards;
  }
  const double received = static_cast<double>(bytes) * (group.size - 1) / group.size;
  Transfer transfer;
  transfer.link = nodes > 1 ? LinkKind::kNetwork : LinkKind::kNode;
  transfer.latency_ms = 1e-3 * (hardware.start_us + hops_us(nodes, group.in_node, hardware));
  transfer.link_ms = 1e3 * received / (rate * hardware.network_efficiency);
  return transfer;
}

Transfer exchange(int64_t bytes, const RankGroup& group, const Hardware& hardware) {
  if (group.size == 1 || bytes == 0) return {};
  const double each = static_cast<double>(bytes) / group.size;
  const Transfer inside = message(static_cast<int64_t>(each * (group.in_node - 1)), LinkKind::kNode, hardware);
  if (group.size == group.in_node) return inside;
  const Transfer outside =
      message(static_cast<int64_t>(each * (group.size - group.in_node)), LinkKind::kNetwork, hardware);
  return outside.link_ms > inside.link_ms ? outside : inside;
}

Transfer message(int64_t bytes, LinkKind link, const Hardware& hardware) {
  const Link& way = link == LinkKind::kNetwork ? hardware.network : hardware.node;
  const double hop_us = hardware.hops == Hops::kNone ? 0 : way.hop_us;
  return {link, 1e-3 * (hardware.start_us + hop_us),
          1e3 * static_cast<double>(bytes) / (way.bytes_per_second * hardware.network_efficiency)};
}

}  // namespace fsdp::plan::time
