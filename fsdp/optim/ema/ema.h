#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

class FlatParameters;

struct EmaOptions {
  double decay = 0.999;  // from 0 to below 1: how much less a weight counts with each update that follows
};

// An exponential moving average of the weights as they train, of each rank's own slices: 4 bytes a parameter in fp32 (8
// in fp64). After t updates an element is the mean of the t weights that were seen, each counting `decay` times as much
// as the next,
//   (1 - d) / (1 - d^t) * (w_t + d w_(t-1) + ... + d^(t-1) w_1),
// so that the weights before the first update do not matter and no warm-up of the decay is needed. Frozen parameters
// have none. The state lies on a disk where that of the optimizer does. checkpoint::State::ema keeps it, for any number
// of ranks. After: torch.optim.swa_utils.AveragedModel, with the bias of its start taken out as Adam does.
class Ema {
 public:
  // Of fsdp::parameters() or plain leaves. Throws Error(kUsage) for a decay out of range, and for leaves that train in
  // another type than fp32 or fp64: averages change places with weights, which must hold them.
  Ema(std::vector<at::Tensor> leaves, EmaOptions options);
  ~Ema();
  Ema(Ema&&) noexcept;
  Ema& operator=(Ema&&) noexcept;

  // After each step of the optimizer that was taken. Local. Throws Error(kUsage) while the model has the averages.
  void update();

  // Which weights the model has; they change places in memory, without memory for a second set. No-op where it has them
  // already; leaves that were never updated keep their weights. Back with use_trained() before the model trains on or a
  // checkpoint is saved. COLLECTIVE in so far as every rank must come to it.
  void use_average();
  void use_trained();
  bool uses_average() const;

  double decay() const;
  int64_t state_bytes() const;  // on this rank

  // For checkpoints.
  FlatParameters& flat_parameters();

 private:
  struct State;
  void exchange();
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
