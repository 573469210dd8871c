#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "fsdp/comm/host/host_links.h"
#include "fsdp/comm/transport/transport.h"

namespace fsdp::comm {

// A transport for groups that are one dimension of larger ones (two_level_transport.h).
class BlockTransport : public Transport {
 public:
  // output [blocks, size, n], shard [blocks, n]: as all_gather() for each block.
  virtual std::unique_ptr<Transfer> all_gather_blocks(const at::Tensor& output, const at::Tensor& shard, int64_t blocks,
                                                      uint32_t tag) = 0;
  // input [blocks, size, n], output [blocks, n]: as reduce_scatter() for each block, output overwritten.
  virtual std::unique_ptr<Transfer> reduce_scatter_blocks(const at::Tensor& input, const at::Tensor& output,
                                                          int64_t blocks, uint32_t tag) = 0;
};

// Moves nothing but what must be moved between ranks of one host: each reads what the others posted straight from their
// memory. Data that lies in its rank's arena is read where it lies; other data is copied into the arena first. Sums
// have the bits that make_gloo_transport() gives them. `ranks`: those of the links, this rank among them. CPU tensors
// only. COLLECTIVE over them, in the same order on each for groups of the same ranks.
//
// Beyond what Transport asks for: a transfer that is destroyed without a wait() that returned is given up. Peers that
// need data of it which cannot outlive it get a TransferFailure; none of them hangs.
std::unique_ptr<BlockTransport> make_shm_transport(std::shared_ptr<HostLinks> links, std::vector<int> ranks,
                                                   std::chrono::milliseconds deadline);

}  // namespace fsdp::comm
