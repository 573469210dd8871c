#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fsdp {

// Who wants to hear of the norms of gradients that this thread takes: what a norm says of all ranks' gradients need not
// be asked again. Local.
class NormListener {
 public:
  virtual ~NormListener() = default;
  // `norm`: 0-dim, of the gradients of `leaves` over all ranks, before they are clipped.
  virtual void hear(const std::vector<at::Tensor>& leaves, const at::Tensor& norm, double norm_type) = 0;
};

// From now on, on this thread, for as long as `listener` lives.
void add_norm_listener(const std::weak_ptr<NormListener>& listener);
void tell_norm_listeners(const std::vector<at::Tensor>& leaves, const at::Tensor& norm, double norm_type);

}  // namespace fsdp
