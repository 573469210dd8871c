#include "fsdp/parallel/random.h"

#include <ATen/ATen.h>

#include <mutex>

#include "fsdp/base/backstage.h"
#include "fsdp/comm/comm.h"

namespace fsdp::parallel {

void share_random_state(at::Generator generator, const std::shared_ptr<Ranks>& ranks) {
  const Backstage backstage;
  const auto state_of = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  const at::Tensor state = state_of();
  ranks->comm()->broadcast(state, 0, {"share random numbers over " + ranks->axis(), "", ""});
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace fsdp::parallel
