#include "fsdp/base/recompute_region.h"

namespace fsdp {

int& RecomputeRegion::depth() {
  thread_local int value = 0;
  return value;
}

}  // namespace fsdp
