#include "fsdp/checkpoint/state/ema_state.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/state/optimizer_adapter.h"
#include "fsdp/checkpoint/state/optimizer_state.h"
#include "fsdp/optim/ema/ema.h"
#include "fsdp/optim/flat_parameters.h"

namespace fsdp::checkpoint {
namespace {

// Averages as an optimizer without learning rates.
class EmaAdapter : public OptimizerAdapter {
 public:
  explicit EmaAdapter(Ema& ema) : ema_(ema), flat_(ema.flat_parameters()) {}

  std::vector<at::Tensor> leaves() const override { return flat_.leaves(); }
  LeafState get(const at::Tensor& leaf) override {
    check_trains();
    const int64_t steps = flat_.steps_of(leaf);
    return steps == 0 ? LeafState{} : LeafState{steps, averages_of(leaf)};
  }
  LeafState make(const at::Tensor& leaf) override {
    check_trains();
    return {0, averages_of(leaf)};
  }
  bool may_be_missing() const override { return true; }
  void install() override {}
  void set_steps(const at::Tensor& leaf, int64_t steps) override { flat_.set_steps_of(leaf, steps); }
  void forget(const at::Tensor& leaf) override {
    flat_.set_steps_of(leaf, 0);
  }  // the first update takes no share of it
  std::vector<double> learning_rates() const override { return {}; }
  void set_learning_rates(const std::vector<double>&) override {}

 private:
  void check_trains() const {
    FSDP_CHECK(!ema_.uses_average(),
               "[checkpoint] state.ema: got a model with its averages, expected the weights that train. Call "
               "Ema::use_trained() before a checkpoint is saved or read.");
  }
  std::vector<LeafTensor> averages_of(const at::Tensor& leaf) const {
    return {{"average", flat_.states_of(leaf).front().tensor}};
  }

  Ema& ema_;
  FlatParameters& flat_;
};

}  // namespace

std::unique_ptr<Stateful> make_ema_state(Ema& ema, const ModuleTensors& model) {
  return make_optimizer_state(std::make_unique<EmaAdapter>(ema), model);
}

}  // namespace fsdp::checkpoint
