#pragma once

#include "app/doctor/finding.h"
#include "fsdp/fsdp.h"

namespace fsdp::app {

// What only several ranks can find out: how far their clocks are apart, and how fast what joins them is. COLLECTIVE.
Findings check_ranks(const World& world);

// COLLECTIVE. Everything that any rank found, by rank; on every rank.
std::vector<Findings> gather_findings(const World& world, const Findings& mine);

// Rank 0 writes the speed of the link between two ranks into `file`, for probe_transport(). COLLECTIVE.
void answer_probe(const World& world, const std::string& file);

}  // namespace fsdp::app
