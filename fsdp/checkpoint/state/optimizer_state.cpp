#include "fsdp/checkpoint/state/optimizer_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/state/exact_number.h"
#include "fsdp/checkpoint/state/optimizer_adapter.h"
#include "fsdp/checkpoint/state/whole_range.h"

namespace fsdp::checkpoint {
namespace {

std::string rates_text(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) text += (text.empty() ? "" : " ") + exact_text(number);
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
  std::optional<WholeRange> range;  // none: every rank has the whole tensor, and a state of its own
};

class OptimizerState : public Stateful {
 public:
  OptimizerState(std::unique_ptr<OptimizerAdapter> optimizer, const ModuleTensors& model)
      : adapter_(std::move(optimizer)) {
    for (const ModuleTensor& tensor : model.tensors) {
      const at::Tensor leaf = tensor.member ? tensor.member->group->leaf(tensor.member->index) : *tensor.tensor;
      Place& place = places_[leaf.unsafeGetTensorImpl()];
      place.name = tensor.name;
      if (tensor.member) place.range.emplace(tensor);
    }
    for (const at::Tensor& leaf : adapter_->leaves()) {
      FSDP_CHECK(places_.count(leaf.unsafeGetTensorImpl()) > 0, "[checkpoint] state.optimizer: got a parameter of ",
                 leaf.numel(),
                 " elements that the model does not have, expected the leaves of fsdp::parameters(model).");
    }
  }

  void save(StateSink& sink) override {
    sink.value("learning_rates", rates_text(adapter_->learning_rates()));
    for (const at::Tensor& leaf : sorted_leaves()) {
      const Place& place = place_of(leaf);
      const LeafState state = adapter_->get(leaf);
      if (state.steps == 0 && state.tensors.empty()) continue;
      hand_over(sink, place, {"step", at::full({1}, state.steps, at::kLong)});
      for (const LeafTensor& each : state.tensors) hand_over(sink, place, each);
    }
  }

  void load(StateSource& source) override {
    steps_.clear();
    read_.clear();
    const size_t num_groups = adapter_->learning_rates().size();
    const auto rates = source.value("learning_rates");
    rates_ = numbers_of(rates.value_or(""));
    if (!rates && !adapter_->may_be_missing()) {
      source.refuse("the checkpoint has none");
    } else if (!rates) {
      // Every leaf is forgotten below.
    } else if (rates_.size() != num_groups) {
      source.refuse(c10::str("the checkpoint has ", rates_.size(), " groups of parameters, expected ", num_groups));
    }
    for (const at::Tensor& leaf : sorted_leaves()) {
      const Place& place = place_of(leaf);
      const bool was_updated = source.has("step/" + place.name) || (rates && adapter_->has_state_from_start());
      steps_.push_back({leaf, was_updated ? at::zeros({1}, at::kLong) : at::Tensor()});
      if (!was_updated) continue;
      hand_over(source, place, {"step", steps_.back().count});
      for (const LeafTensor& each : adapter_->make(leaf).tensors) hand_over(source, place, each);
    }
  }

  void before_read() override { adapter_->install(); }

  void loaded() override {
    for (const auto& [place, slice, tensor] : read_) place->range->take(slice, tensor);
    read_.clear();
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

  // What ranks of a cut exchange when it was read.
  struct Read {
    const Place* place;
    TensorSlice slice;
    at::Tensor tensor;
  };

  // By name, so that the ranks of a cut exchange them in one order: optimizers have orders of each rank's own.
  std::vector<at::Tensor> sorted_leaves() const {
    std::vector<at::Tensor> leaves = adapter_->leaves();
    std::sort(leaves.begin(), leaves.end(),
              [this](const at::Tensor& a, const at::Tensor& b) { return place_of(a).name < place_of(b).name; });
    return leaves;
  }

  const Place& place_of(const at::Tensor& leaf) const { return places_.at(leaf.unsafeGetTensorImpl()); }

  static TensorSlice slice_for(const StateSink&, const Place& place, const std::string& name, const at::Tensor& tensor,
                               std::vector<Read>&) {
    return place.range->to_save(name, tensor);
  }
  static TensorSlice slice_for(const StateSource&, const Place& place, const std::string& name,
                               const at::Tensor& tensor, std::vector<Read>& read) {
    TensorSlice slice = place.range->to_load(name, tensor);
    if (place.range->is_exchanged()) read.push_back({&place, slice, tensor});
    return slice;
  }

  // To a sink, or to a source that fills it.
  template <class SinkOrSource>
  void hand_over(SinkOrSource& other, const Place& place, const LeafTensor& each) {
    const at::Tensor& tensor = each.tensor;
    const std::string full = each.name + "/" + place.name;
    const bool is_count = tensor.scalar_type() == at::kLong;
    if (!place.range) {
      other.replica(full, tensor);
    } else if (is_count) {
      other.slice({full, {1}, 0, 1, tensor});
    } else if (each.block > 1) {
      other.slice(place.range->blocks(full, tensor, each.block));
    } else {
      other.slice(slice_for(other, place, full, tensor.view(-1), read_));
    }
  }

  std::unique_ptr<OptimizerAdapter> adapter_;
  std::unordered_map<const c10::TensorImpl*, Place> places_;
  std::vector<Steps> steps_;
  std::vector<Read> read_;
  std::vector<double> rates_;
};

}  // namespace

std::unique_ptr<Stateful> make_optimizer_state(const OptimizerRef& optimizer, const ModuleTensors& model) {
  return make_optimizer_state(adapt(optimizer), model);
}

std::unique_ptr<Stateful> make_optimizer_state(std::unique_ptr<OptimizerAdapter> optimizer,
                                               const ModuleTensors& model) {
  return std::make_unique<OptimizerState>(std::move(optimizer), model);
}

}  // namespace fsdp::checkpoint
