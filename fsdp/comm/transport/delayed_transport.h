#pragma once

#include <chrono>
#include <memory>

#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// What a slow network would add to each transfer of this rank.
struct TransferDelays {
  std::chrono::microseconds gather{0};
  std::chrono::microseconds reduce{0};

  bool any() const { return gather.count() > 0 || reduce.count() > 0; }
};

// `transport`, with every wait for a transfer made longer: for tests of overlap and of results that must not depend on
// time.
std::unique_ptr<Transport> make_delayed_transport(std::unique_ptr<Transport> transport, const TransferDelays& delays);

}  // namespace fsdp::comm
