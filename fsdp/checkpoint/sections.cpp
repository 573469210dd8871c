#include "fsdp/checkpoint/sections.h"

#include <algorithm>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/state/ema_state.h"
#include "fsdp/checkpoint/state/module_state.h"
#include "fsdp/checkpoint/state/optimizer_state.h"
#include "fsdp/checkpoint/state/random_state.h"
#include "fsdp/checkpoint/state/scaler_state.h"
#include "fsdp/group/group_owner.h"

namespace fsdp::checkpoint {
namespace {

bool is_given(const OptimizerRef& optimizer) { return optimizer.flat != nullptr || optimizer.torch != nullptr; }

// Both characters have a meaning in the names of a checkpoint.
bool is_plain(const std::string& name) { return !name.empty() && name.find_first_of("/#") == std::string::npos; }

}  // namespace

Sections::Sections(const State& state, const std::string& operation) : model_(tensors_of(state.model, operation)) {
  own("model", make_module_state(model_, state.keeps));
  if (is_given(state.optimizer)) own("optimizer", make_optimizer_state(state.optimizer, model_));
  for (const auto& [name, optimizer] : state.more_optimizers) {
    FSDP_CHECK(is_plain(name) && is_given(optimizer), "[", operation, "] state.more_optimizers: got the name '", name,
               "', expected an optimizer under a name without '/' and '#'.");
    own("optimizer." + name, make_optimizer_state(optimizer, model_));
  }
  if (state.ema != nullptr) own("ema", make_ema_state(*state.ema, model_));
  if (state.scaler != nullptr) own("scaler", make_scaler_state(*state.scaler));
  own("random", make_random_state(world()));
  for (const auto& [name, other] : state.others) {
    const bool taken =
        std::any_of(list_.begin(), list_.end(), [&](const Section& section) { return section.name == name; });
    FSDP_CHECK(other != nullptr && is_plain(name) && !taken, "[", operation, "] state.others: got the name '", name,
               "', expected one that is not taken and has no '/' and '#'.");
    list_.push_back({name, other});
  }
}

void Sections::own(const std::string& name, std::unique_ptr<Stateful> state) {
  owned_.push_back(std::move(state));
  list_.push_back({name, owned_.back().get()});
}

}  // namespace fsdp::checkpoint
