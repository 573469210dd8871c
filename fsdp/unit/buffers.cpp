#include "fsdp/unit/buffers.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <map>

#include "fsdp/base/backstage.h"
#include "fsdp/comm/comm.h"
#include "fsdp/comm/connection.h"

namespace fsdp {
namespace {

void make_equal_flat(comm::Comm& comm, const at::Tensor& flat, BufferSync sync, const std::string& what) {
  if (sync == BufferSync::kBroadcast || !flat.is_floating_point()) {
    comm.broadcast(flat, 0, {"broadcast " + what, "", ""});
    return;
  }
  comm.all_reduce_small(flat, {"mean of " + what, "", ""});
  flat.div_(comm.size());
}

}  // namespace

void make_equal(comm::Comm& comm, const std::vector<at::Tensor>& tensors, BufferSync sync, const std::string& what) {
  if (comm.size() == 1 || sync == BufferSync::kPerRank) return;
  const Backstage backstage;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) by_dtype[tensor.scalar_type()].push_back(tensor);
  }
  for (const auto& [dtype, list] : by_dtype) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : list) pieces.push_back(tensor.detach().reshape({-1}));
    const at::Tensor flat = at::cat(pieces);
    make_equal_flat(comm, flat, sync, what);
    int64_t begin = 0;
    for (const at::Tensor& tensor : list) {
      tensor.detach().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

void sync_buffers(const World& world, const torch::nn::Module& module, BufferSync sync) {
  make_equal(*world.connection->world(), module.buffers(), sync);
}

}  // namespace fsdp
