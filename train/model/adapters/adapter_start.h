#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "io/weights/adapter.h"

namespace fsdp::train {

// What adapters begin with where they hold a part of their base (PiSSA): the base of training is W - scale B A.
struct AdapterStart {
  std::map<std::string, io::LowRank> factors;  // by the map's name
  double scale = 1;

  // Elements [first, first + count) of the map's weight, less what its adapter begins with; of a map without one, as
  // they are.
  void take_from(const std::string& map, int64_t first, int64_t count, float* weights) const {
    const auto found = factors.find(map);
    if (found != factors.end()) io::add_low_rank(found->second, -scale, first, count, weights);
  }
};

}  // namespace fsdp::train
