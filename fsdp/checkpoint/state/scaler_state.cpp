#include "fsdp/checkpoint/state/scaler_state.h"

#include <charconv>
#include <cmath>
#include <string>

#include "fsdp/checkpoint/state/exact_number.h"
#include "fsdp/optim/grad_scaler.h"

namespace fsdp::checkpoint {
namespace {

template <class Number>
bool read_number(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

class ScalerState : public Stateful {
 public:
  explicit ScalerState(GradScaler& scaler) : scaler_(scaler) {}

  void save(StateSink& sink) override {
    sink.value("scale", exact_text(scaler_.state().scale));
    sink.value("steps_without_overflow", exact_text(scaler_.state().steps_without_overflow));
  }

  void load(StateSource& source) override {
    loaded_ = scaler_.state();
    const auto scale = source.value("scale"), steps = source.value("steps_without_overflow");
    if (!scale && !steps) return;
    const bool is_right = scale && steps && read_number(*scale, loaded_.scale) &&
                          read_number(*steps, loaded_.steps_without_overflow) && loaded_.scale > 0 &&
                          std::isfinite(loaded_.scale) && loaded_.steps_without_overflow >= 0;
    if (!is_right) {
      source.refuse("the checkpoint has a loss scale of '" + scale.value_or("") + "' and '" + steps.value_or("") +
                    "' steps without overflow, expected a number above 0 and a count");
    }
  }

  void loaded() override { scaler_.load(loaded_); }

 private:
  GradScaler& scaler_;
  GradScalerState loaded_;
};

}  // namespace

std::unique_ptr<Stateful> make_scaler_state(GradScaler& scaler) { return std::make_unique<ScalerState>(scaler); }

}  // namespace fsdp::checkpoint
