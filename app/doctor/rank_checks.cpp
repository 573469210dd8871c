#include "app/doctor/rank_checks.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "app/doctor/link_speed.h"
#include "io/base/atomic_file.h"
#include "train/base/format.h"
#include "train/calibrate/rank_calibration.h"

namespace fsdp::app {
namespace {

constexpr double kLinkSeconds = 1;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Right after a barrier the ranks' clocks should say the same; the best of some tries, for a rank may be late.
Finding check_clocks(const World& world) {
  constexpr int kTries = 8;
  std::vector<double> apart(static_cast<size_t>(world.size), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kTries; ++round) {
    barrier(world, "comparing clocks");
    const std::vector<std::string> times = gather_strings(world, train::format_text("%.9f", wall_seconds()));
    for (size_t rank = 0; rank < times.size(); ++rank)
      apart[rank] = std::min(apart[rank], std::abs(std::stod(times[rank]) - std::stod(times[0])));
  }
  size_t worst = 0;
  for (size_t rank = 0; rank < apart.size(); ++rank)
    if (apart[rank] > apart[worst]) worst = rank;
  Finding finding{"clocks", train::format_text("at most %.3g ms apart", 1e3 * apart[worst])};
  if (apart[worst] > 1) {
    finding.verdict = Health::kSlow;
    finding.value += train::format_text(" (rank %zu from rank 0)", worst);
    finding.advice = "Training does not need them, reading logs of several hosts does: use NTP or chrony.";
  }
  return finding;
}

LinkSpeed measure(const World& world) {
  const train::RankLinkSpeed speed = train::measure_rank_link(world, kLinkSeconds);
  return {speed.bytes_per_second, speed.call_us};
}

}  // namespace

Findings check_ranks(const World& world) {
  Findings findings;
  findings.push_back({"ranks", train::format_text("%d, %d on this host, started by %s", world.size, world.local_size,
                                                  launcher_name().c_str())});
  findings.push_back(check_clocks(world));
  findings.push_back(judge_link(transport_name(world), measure(world)));
  return findings;
}

std::vector<Findings> gather_findings(const World& world, const Findings& mine) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (Finding finding : mine) {
    finding.rank = world.rank;
    list.push_back(to_json(finding));
  }
  std::vector<Findings> all;
  for (const std::string& text :
       gather_strings(world, list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace))) {
    all.emplace_back();
    for (const auto& entry : nlohmann::json::parse(text)) all.back().push_back(parse_finding(entry));
  }
  return all;
}

void answer_probe(const World& world, const std::string& file) {
  const LinkSpeed speed = measure(world);
  if (world.rank == 0)
    io::write_file_atomically(file, train::format_text("%.9g %.9g\n", speed.bytes_per_second, speed.call_us));
}

}  // namespace fsdp::app
