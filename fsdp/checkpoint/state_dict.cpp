#include "fsdp/checkpoint/state_dict.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/outcome.h"
#include "fsdp/checkpoint/state/module_state.h"
#include "fsdp/checkpoint/state/optimizer_state.h"
#include "fsdp/checkpoint/state/whole_range.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/connection.h"

namespace fsdp {
namespace {

using checkpoint::Stateful;
using checkpoint::StateSink;
using checkpoint::StateSource;
using checkpoint::TensorSlice;
using nlohmann::json;

// A model's state, or its optimizer's.
class StateOf {
 public:
  StateOf(const ModelRef& model, const std::string& operation)
      : operation_(operation), model_(checkpoint::tensors_of(model, operation)) {
    state_ = checkpoint::make_module_state(model_);
    model_.owner->on_library_entry();
  }
  StateOf(const ModelRef& model, const OptimizerRef& optimizer, const std::string& operation)
      : StateOf(model, operation) {
    state_ = checkpoint::make_optimizer_state(optimizer, model_);
  }
  StateOf(const StateOf&) = delete;
  StateOf& operator=(const StateOf&) = delete;

  const World& world() const { return model_.owner->world(); }
  const std::string& operation() const { return operation_; }
  Stateful& state() const { return *state_; }
  const ModuleTensors& model() const { return model_; }

 private:
  std::string operation_;
  ModuleTensors model_;
  std::unique_ptr<Stateful> state_;
};

class DictSink : public StateSink {
 public:
  void slice(TensorSlice slice) override {
    slice.data = at::Tensor(slice.data).detach().cpu();
    slices.push_back(std::move(slice));
  }
  void replica(const std::string& name, const at::Tensor& tensor) override {
    replicas.push_back({name, tensor.sizes().vec(), 0, tensor.numel(), tensor.detach().cpu().contiguous().view(-1)});
  }
  void value(const std::string& key, const std::string& text) override { values[key] = text; }

  std::vector<TensorSlice> slices, replicas;
  std::map<std::string, std::string> values;
};

// By name: optimizers name their tensors in an order of each rank's own.
void sort_by_name(std::vector<TensorSlice>& slices) {
  std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

DictSink collect(const StateOf& subject) {
  DictSink collector;
  subject.state().save(collector);
  sort_by_name(collector.slices);
  sort_by_name(collector.replicas);
  return collector;
}

// ---- whole tensors

// [rank][slice] -> begin, end.
using Places = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

Places gather_places(const World& world, const std::vector<TensorSlice>& slices) {
  std::vector<std::pair<int64_t, int64_t>> mine;
  for (const TensorSlice& slice : slices) mine.emplace_back(slice.begin, slice.end);
  Places places;
  for (const std::string& text : gather_strings(world, json(mine).dump())) places.push_back(json::parse(text));
  return places;
}

// COLLECTIVE, unless every rank has all of it. Undefined where `keeps` is false.
at::Tensor assemble(const World& world, const TensorSlice& slice, size_t index, const Places& places, bool keeps) {
  const int64_t numel = c10::multiply_integers(slice.shape);
  const auto place = [&](int rank) { return places[static_cast<size_t>(rank)][index]; };
  int64_t longest = 0;
  bool is_whole_everywhere = true;
  for (int rank = 0; rank < world.size; ++rank) {
    longest = std::max(longest, place(rank).second - place(rank).first);
    is_whole_everywhere = is_whole_everywhere && place(rank) == std::pair<int64_t, int64_t>(0, numel);
  }
  if (is_whole_everywhere) return keeps ? slice.data.clone().view(slice.shape) : at::Tensor();
  const at::Tensor mine = at::zeros({longest}, slice.data.options());
  mine.narrow(0, 0, slice.data.numel()).copy_(slice.data);
  const at::Tensor all = at::empty({longest * world.size}, mine.options());
  world.connection->world()->all_gather(all, mine, {"gather a state dict", slice.name, ""}).wait();
  if (!keeps) return {};
  at::Tensor whole = at::empty({numel}, mine.options());
  for (int rank = 0; rank < world.size; ++rank) {
    const auto [begin, end] = place(rank);
    whole.narrow(0, begin, end - begin).copy_(all.narrow(0, rank * longest, end - begin));
  }
  return whole.view(slice.shape);
}

// COLLECTIVE.
void assemble_all(const World& world, const std::vector<TensorSlice>& slices, bool keeps, StateDict& dict) {
  const Places places = gather_places(world, slices);
  for (size_t i = 0; i < slices.size(); ++i) {
    const at::Tensor whole = assemble(world, slices[i], i, places, keeps);
    if (keeps) dict.tensors[slices[i].name] = whole;
  }
}

StateDict full_dict(const StateOf& subject, DictHolder holder) {
  const Backstage backstage;
  const World& world = subject.world();
  DictSink collected;
  run_on_every_rank(world, [&] { collected = collect(subject); });
  const bool keeps = holder == DictHolder::kEveryRank || world.rank == 0;
  StateDict dict;
  assemble_all(world, collected.slices, keeps, dict);
  for (const TensorSlice& replica : collected.replicas) {
    const at::Tensor copy = replica.data.clone();
    if (holder == DictHolder::kEveryRank) {
      world.connection->world()->broadcast(copy, 0, {"gather a state dict", replica.name, ""});
    }
    if (keeps) dict.tensors[replica.name] = copy.view(replica.shape);
  }
  if (keeps) dict.values = std::move(collected.values);
  return dict;
}

// ---- loading

// What is asked for, checked against what there is.
class DictRequests : public StateSource {
 public:
  struct Stored {
    std::vector<int64_t> shape;
    std::optional<std::pair<int64_t, int64_t>> place;  // of a slice
  };
  DictRequests(std::map<std::string, Stored> stored, std::map<std::string, std::string> values, int world_size)
      : stored_(std::move(stored)), values_(std::move(values)), world_size_(world_size) {}

  bool has(const std::string& tensor) const override { return stored_.count(tensor) > 0; }
  void slice(TensorSlice slice) override { add(std::move(slice)); }
  bool replica(const std::string& name, const at::Tensor& tensor) override {
    add({name, tensor.sizes().vec(), 0, tensor.numel(), tensor});
    return true;
  }
  std::optional<std::string> value(const std::string& key) const override {
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  void pass_over(const std::string& tensor) override { asked_.insert(tensor); }
  void refuse(const std::string& difference) override { differences_.push_back(difference); }
  int saved_world_size() const override { return world_size_; }

  // Throws Error(kUsage) if anything does not fit.
  void check(const std::string& operation) {
    for (const auto& [name, stored] : stored_) {
      if (asked_.count(name) == 0) differences_.push_back(name + " belongs to nothing here");
    }
    if (differences_.empty()) return;
    std::string text;
    for (const std::string& difference : differences_) text += (text.empty() ? "" : "; ") + difference;
    FSDP_THROW(kUsage, "[", operation, "] got a state dict of another model or optimizer (", differences_.size(),
               " differences: ", text, "), expected one of this.");
  }

  std::vector<TensorSlice> list;

 private:
  void add(TensorSlice slice) {
    asked_.insert(slice.name);
    const auto found = stored_.find(slice.name);
    if (found == stored_.end()) return differences_.push_back(slice.name + " is missing");
    const Stored& stored = found->second;
    if (stored.shape != slice.shape) {
      return differences_.push_back(c10::str(slice.name, " has shape ", at::IntArrayRef(stored.shape), ", expected ",
                                             at::IntArrayRef(slice.shape)));
    }
    if (stored.place && *stored.place != std::pair(slice.begin, slice.end)) {
      return differences_.push_back(c10::str(slice.name, " has elements ", stored.place->first, " to ",
                                             stored.place->second, ", expected ", slice.begin, " to ", slice.end));
    }
    list.push_back(std::move(slice));
  }

  std::map<std::string, Stored> stored_;
  std::map<std::string, std::string> values_;
  int world_size_;
  std::set<std::string> asked_;
  std::vector<std::string> differences_;
};

// COLLECTIVE. `write` gives each request its numbers, in the same order on every rank.
void fulfil(const StateOf& subject, DictRequests& requests, const std::function<void(const TensorSlice&)>& write) {
  const World& world = subject.world();
  run_on_every_rank(world, [&] {
    subject.state().load(requests);
    requests.check(subject.operation());
    sort_by_name(requests.list);
  });
  run_on_every_rank(world, [&] { subject.state().before_read(); });
  run_on_every_rank(world, [&] {
    for (const TensorSlice& request : requests.list) write(request);
  });
  run_on_every_rank(world, [&] { subject.state().loaded(); });
}

void write_into(const TensorSlice& request, const at::Tensor& numbers) {
  at::Tensor target = request.data.detach();
  target.copy_(numbers.view(target.sizes()));
}

// Rank 0's names, shapes, dtypes and values: what the others know of tensors that only rank 0 has.
StateDict outline_of(const World& world, const StateDict& dict) {
  json outline = {{"values", dict.values}, {"tensors", json::object()}};
  for (const auto& [name, tensor] : dict.tensors) {
    outline["tensors"][name] = {{"shape", tensor.sizes().vec()}, {"dtype", static_cast<int>(tensor.scalar_type())}};
  }
  outline = json::parse(broadcast_string(world, outline.dump()));
  if (world.rank == 0) return dict;
  StateDict other{{}, outline["values"]};
  for (const auto& [name, tensor] : outline["tensors"].items()) {
    const auto dtype = static_cast<at::ScalarType>(tensor["dtype"].get<int>());
    other.tensors[name] = at::empty(tensor["shape"].get<std::vector<int64_t>>(), at::device(at::kMeta).dtype(dtype));
  }
  return other;
}

void load_full(const StateOf& subject, const StateDict& given, DictHolder holder) {
  const Backstage backstage;
  const World& world = subject.world();
  const bool travels = holder == DictHolder::kRankZero;
  const StateDict dict = travels ? outline_of(world, given) : given;
  std::map<std::string, DictRequests::Stored> stored;
  for (const auto& [name, tensor] : dict.tensors) stored[name] = {tensor.sizes().vec(), {}};
  DictRequests requests(std::move(stored), dict.values, world.size);
  fulfil(subject, requests, [&](const TensorSlice& request) {
    at::Tensor whole = dict.tensors.at(request.name);
    if (travels) {
      whole = whole.is_meta() ? at::empty(whole.sizes(), whole.options().device(at::kCPU)) : whole.contiguous();
      world.connection->world()->broadcast(whole, 0, {"load a state dict", request.name, ""});
    }
    write_into(request, whole.contiguous().view(-1).narrow(0, request.begin, request.end - request.begin));
  });
}

ShardedStateDict sharded_dict(const StateOf& subject) {
  const Backstage backstage;
  DictSink collected = collect(subject);
  ShardedStateDict dict{std::move(collected.slices), std::move(collected.values)};
  for (TensorSlice& replica : collected.replicas) dict.slices.push_back(std::move(replica));
  for (TensorSlice& slice : dict.slices) slice.data = slice.data.clone();
  return dict;
}

void load_sharded(const StateOf& subject, const ShardedStateDict& dict) {
  const Backstage backstage;
  std::map<std::string, DictRequests::Stored> stored;
  std::map<std::string, at::Tensor> numbers;
  for (const TensorSlice& slice : dict.slices) {
    stored[slice.name] = {slice.shape, std::pair(slice.begin, slice.end)};
    numbers[slice.name] = slice.data;
  }
  DictRequests requests(std::move(stored), dict.values, subject.world().size);
  fulfil(subject, requests, [&](const TensorSlice& request) { write_into(request, numbers.at(request.name)); });
}

}  // namespace

StateDict full_state_dict(const ModelRef& model, DictHolder holder) {
  return full_dict(StateOf(model, "full_state_dict"), holder);
}

StateDict full_gradients(const ModelRef& model, DictHolder holder) {
  const StateOf subject(model, "full_gradients");
  const Backstage backstage;
  std::vector<TensorSlice> slices;
  for (const ModuleTensor& tensor : subject.model().tensors) {
    if (!tensor.member) continue;
    const at::Tensor& leaf = tensor.member->group->leaf(tensor.member->index);
    if (!leaf.grad().defined()) continue;
    slices.push_back(checkpoint::WholeRange(tensor).to_save(tensor.name, leaf.grad().detach()));
    slices.back().data = slices.back().data.cpu();
  }
  StateDict dict;
  assemble_all(subject.world(), slices, holder == DictHolder::kEveryRank || subject.world().rank == 0, dict);
  return dict;
}

StateDict full_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer, DictHolder holder) {
  return full_dict(StateOf(model, optimizer, "full_optimizer_state_dict"), holder);
}

void load_full_state_dict(const ModelRef& model, const StateDict& dict, DictHolder holder) {
  load_full(StateOf(model, "load_full_state_dict"), dict, holder);
}

void load_full_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer, const StateDict& dict,
                                    DictHolder holder) {
  load_full(StateOf(model, optimizer, "load_full_optimizer_state_dict"), dict, holder);
}

ShardedStateDict sharded_state_dict(const ModelRef& model) {
  return sharded_dict(StateOf(model, "sharded_state_dict"));
}

ShardedStateDict sharded_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer) {
  return sharded_dict(StateOf(model, optimizer, "sharded_optimizer_state_dict"));
}

void load_sharded_state_dict(const ModelRef& model, const ShardedStateDict& dict) {
  load_sharded(StateOf(model, "load_sharded_state_dict"), dict);
}

void load_sharded_optimizer_state_dict(const ModelRef& model, const OptimizerRef& optimizer,
                                       const ShardedStateDict& dict) {
  load_sharded(StateOf(model, optimizer, "load_sharded_optimizer_state_dict"), dict);
}

}  // namespace fsdp
