#pragma once

#include <c10/core/ScalarType.h>

#include "fsdp/mesh/mesh.h"
#include "plan/time/hardware.h"

namespace fsdp::train {

// calibrate_cpu() of all ranks of a host while all of them compute, the mean over them; and where there are several,
// the link between them: how long gathers and reductions of gradients take, alone, and how much they slow computing
// down. What ranks compute counts with the time that they wait for the slowest one where they meet every 10 ms. Takes
// about `seconds`, a fifth of it for links and meetings. The threads of each rank are those that set_threads() gave it.
// COLLECTIVE. Throws Error(kUsage) where ranks are on several hosts, and as calibrate_cpu() does.
plan::time::Hardware calibrate_ranks(const World& world, c10::ScalarType dtype, double seconds);

struct RankLinkSpeed {
  double bytes_per_second = 0;  // received by a rank, in gathers and reductions of large parts
  double call_us = 0;           // of a call with little in it
};

// How fast ranks reach each other over the transport they have, in fp32 and on memory as training has it, within about
// `seconds`. Needs several ranks, of one host or many. COLLECTIVE.
RankLinkSpeed measure_rank_link(const World& world, double seconds);

}  // namespace fsdp::train
