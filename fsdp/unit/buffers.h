#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"
#include "fsdp/unit/options.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

namespace comm {
class Comm;
}  // namespace comm

// Makes the buffers of `module` and all below it equal on every rank, as `sync` says; kPerRank does nothing. All
// buffers of one dtype travel together. COLLECTIVE over the world. After: PyTorch DDP's broadcast_buffers.
void sync_buffers(const World& world, const torch::nn::Module& module, BufferSync sync);

// The same for a list of tensors, over the ranks of `comm`; `what` they are, for errors.
void make_equal(comm::Comm& comm, const std::vector<at::Tensor>& tensors, BufferSync sync,
                const std::string& what = "buffers");

}  // namespace fsdp
