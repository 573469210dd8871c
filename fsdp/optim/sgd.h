#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/group/parameters.h"

namespace fsdp {

class FlatParameters;

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient, as in torch.optim.SGD
  bool nesterov = false;
};

struct SGDGroup {
  std::vector<at::Tensor> parameters;
  SGDOptions options;
};

// Stochastic gradient descent over the flat shards, with momentum. Local. Semantics of torch.optim.SGD.
class SGD {
 public:
  SGD(std::vector<at::Tensor> parameters, SGDOptions options);
  explicit SGD(std::vector<SGDGroup> groups);
  SGD(std::vector<DecayGroup> groups, SGDOptions options);
  ~SGD();
  SGD(SGD&&) noexcept;
  SGD& operator=(SGD&&) noexcept;

  void step(double gradient_factor = 1);  // see AdamW::step()
  void step(const at::Tensor& gradient_factor);
  void step_in_backward();  // see AdamW::step_in_backward()
  void set_lr(double lr);   // of all groups
  SGDOptions& options(size_t group);
  size_t num_groups() const;
  int64_t state_bytes() const;
  // For checkpoints.
  FlatParameters& flat_parameters();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
