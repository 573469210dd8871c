#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds deadline = std::chrono::minutes(5);
  // Address of this host that the other ranks reach: a host name or an IP address.
  std::string host = "127.0.0.1";
};

// c10d's ProcessGroupGloo, used for what it does without copies: sends and receives between pairs. Gathers go straight
// into place, and reductions move each byte once ((size-1)/size of the buffer per rank; Gloo's own reduce-scatter in
// c10d is an all-reduce) and add as a tree of ranks. COLLECTIVE: connects all pairs through `store`.
std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store,
                                               const GlooOptions& options);

}  // namespace fsdp::comm
