#include "fsdp/checkpoint/state/optimizer_state.h"

#include <ATen/ATen.h>

#include <charconv>
#include <sstream>
#include <unordered_map>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/state/optimizer_adapter.h"

namespace fsdp::checkpoint {
namespace {

// Text that reads back as the same bits.
std::string exact_text(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) {
    char digits[64];
    const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
    text += (text.empty() ? "" : " ") + std::string(digits, end);
  }
  return text;
}

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    double number = 0;
    std::from_chars(word.data(), word.data() + word.size(), number);
    numbers.push_back(number);
  }
  return numbers;
}

// Where a leaf belongs.
struct Place {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
  bool is_sharded = false;  // else every rank has the whole tensor, and a state of its own
};

class OptimizerState : public Stateful {
 public:
  OptimizerState(const OptimizerRef& optimizer, const ModuleTensors& model) : adapter_(adapt(optimizer)) {
    for (const ModuleTensor& tensor : model.tensors) {
      at::Tensor leaf = *tensor.tensor;
      layout::Range range{0, leaf.numel()};
      if (tensor.member) {
        leaf = tensor.member->group->leaf(tensor.member->index);
        range = tensor.member->group->main_slice(tensor.member->index);
      }
      places_[leaf.unsafeGetTensorImpl()] = {tensor.name, tensor.sizes(), range.begin, range.end,
                                             tensor.member.has_value()};
    }
    for (const at::Tensor& leaf : adapter_->leaves()) {
      FSDP_CHECK(places_.count(leaf.unsafeGetTensorImpl()) > 0, "[checkpoint] state.optimizer: got a parameter of ",
                 leaf.numel(),
                 " elements that the model does not have, expected the leaves of fsdp::parameters(model).");
    }
  }

  void save(StateSink& sink) override {
    sink.value("learning_rates", exact_text(adapter_->learning_rates()));
    for (const at::Tensor& leaf : adapter_->leaves()) {
      const Place& place = place_of(leaf);
      const LeafState state = adapter_->get(leaf);
      if (state.steps == 0 && state.tensors.empty()) continue;
      hand_over(sink, place, "step", at::full({1}, state.steps, at::kLong));
      for (const auto& [name, tensor] : state.tensors) hand_over(sink, place, name, tensor);
    }
  }

  void load(StateSource& source) override {
    steps_.clear();
    const size_t num_groups = adapter_->learning_rates().size();
    const auto rates = source.value("learning_rates");
    rates_ = numbers_of(rates.value_or(""));
    if (!rates) {
      source.refuse("the checkpoint has none");
    } else if (rates_.size() != num_groups) {
      source.refuse(c10::str("the checkpoint has ", rates_.size(), " groups of parameters, expected ", num_groups));
    }
    for (const at::Tensor& leaf : adapter_->leaves()) {
      const Place& place = place_of(leaf);
      const bool was_updated = source.has("step/" + place.name) || (rates && adapter_->has_state_from_start());
      steps_.push_back({leaf, was_updated ? at::zeros({1}, at::kLong) : at::Tensor()});
      if (!was_updated) continue;
      hand_over(source, place, "step", steps_.back().count);
      for (const auto& [name, tensor] : adapter_->make(leaf).tensors) hand_over(source, place, name, tensor);
    }
  }

  void before_read() override { adapter_->install(); }

  void loaded() override {
    for (const auto& [leaf, count] : steps_) {
      if (count.defined()) {
        adapter_->set_steps(leaf, count.item<int64_t>());
      } else {
        adapter_->forget(leaf);
      }
    }
    adapter_->set_learning_rates(rates_);
  }

 private:
  struct Steps {
    at::Tensor leaf;
    at::Tensor count;  // undefined: never updated
  };

  const Place& place_of(const at::Tensor& leaf) const { return places_.at(leaf.unsafeGetTensorImpl()); }

  // To a sink, or to a source that fills it.
  template <class SinkOrSource>
  static void hand_over(SinkOrSource& other, const Place& place, const std::string& name, const at::Tensor& tensor) {
    const std::string full = name + "/" + place.name;
    const bool is_count = tensor.scalar_type() == at::kLong;
    if (!place.is_sharded) {
      other.replica(full, tensor);
    } else if (is_count) {
      other.slice({full, {1}, 0, 1, tensor});
    } else {
      other.slice({full, place.shape, place.begin, place.end, tensor.view(-1)});
    }
  }

  std::unique_ptr<OptimizerAdapter> adapter_;
  std::unordered_map<const c10::TensorImpl*, Place> places_;
  std::vector<Steps> steps_;
  std::vector<double> rates_;
};

}  // namespace

std::unique_ptr<Stateful> make_optimizer_state(const OptimizerRef& optimizer, const ModuleTensors& model) {
  return std::make_unique<OptimizerState>(optimizer, model);
}

}  // namespace fsdp::checkpoint
