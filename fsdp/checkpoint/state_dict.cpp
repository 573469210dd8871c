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
#include "fsdp/checkpoint/unclaimed.h"
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

// What a rank has of a tensor, as the others hear of it.
struct Holding {
  int rank = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// A tensor of which some ranks have parts; the others have other stages of a pipeline.
struct Divided {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::vector<Holding> holdings;  // in the order of the ranks

  int64_t numel() const { return c10::multiply_integers(shape); }
  // Has this rank all of it?
  bool is_whole(const Holding& holding) const { return holding.begin == 0 && holding.end == numel(); }
};

// Of all ranks, by name. COLLECTIVE.
std::map<std::string, Divided> gather_holdings(const World& world, const std::vector<TensorSlice>& slices) {
  json mine = json::array();
  for (const TensorSlice& slice : slices) {
    mine.push_back({slice.name, slice.shape, static_cast<int>(slice.data.scalar_type()), slice.begin, slice.end});
  }
  std::map<std::string, Divided> tensors;
  int rank = 0;
  for (const std::string& text : gather_strings(world, mine.dump())) {
    for (const json& row : json::parse(text)) {
      const auto dtype = static_cast<at::ScalarType>(row[2].get<int>());
      Divided& tensor = tensors.try_emplace(row[0], Divided{row[1], dtype, {}}).first->second;
      tensor.holdings.push_back({rank, row[3], row[4]});
    }
    ++rank;
  }
  return tensors;
}

// COLLECTIVE, unless every rank has all of it. `mine`: what this rank has, null for nothing. Undefined where `keeps` is
// false.
at::Tensor assemble(const World& world, const std::string& name, const Divided& tensor, const TensorSlice* mine,
                    bool keeps) {
  const auto is_whole = [&](const Holding& holding) { return tensor.is_whole(holding); };
  const auto options = at::TensorOptions(tensor.dtype);
  const comm::CallLabel label{"gather a state dict", name, ""};
  const bool is_whole_everywhere = static_cast<int>(tensor.holdings.size()) == world.size &&
                                   std::all_of(tensor.holdings.begin(), tensor.holdings.end(), is_whole);
  if (is_whole_everywhere) return keeps ? mine->data.clone().view(tensor.shape) : at::Tensor();
  const auto holder = std::find_if(tensor.holdings.begin(), tensor.holdings.end(), is_whole);
  if (holder != tensor.holdings.end()) {
    const at::Tensor whole = holder->rank == world.rank ? mine->data.clone() : at::empty({tensor.numel()}, options);
    world.connection->world()->broadcast(whole, holder->rank, label);
    return keeps ? whole.view(tensor.shape) : at::Tensor();
  }
  int64_t longest = 0;
  for (const Holding& each : tensor.holdings) longest = std::max(longest, each.end - each.begin);
  const at::Tensor own = at::zeros({longest}, options);
  if (mine != nullptr) own.narrow(0, 0, mine->data.numel()).copy_(mine->data);
  const at::Tensor all = at::empty({longest * world.size}, options);
  world.connection->world()->all_gather(all, own, label).wait();
  if (!keeps) return {};
  at::Tensor whole = at::empty({tensor.numel()}, options);
  for (const auto& [rank, begin, end] : tensor.holdings) {
    whole.narrow(0, begin, end - begin).copy_(all.narrow(0, rank * longest, end - begin));
  }
  return whole.view(tensor.shape);
}

// What this rank has of tensors.
class ByName {
 public:
  explicit ByName(const std::vector<TensorSlice>& slices) {
    for (const TensorSlice& slice : slices) slices_[slice.name] = &slice;
  }
  // Null: it has nothing of that one.
  const TensorSlice* find(const std::string& name) const {
    const auto found = slices_.find(name);
    return found == slices_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, const TensorSlice*> slices_;
};

// COLLECTIVE.
void assemble_all(const World& world, const std::vector<TensorSlice>& slices, bool keeps, StateDict& dict) {
  const ByName mine(slices);
  for (const auto& [name, tensor] : gather_holdings(world, slices)) {
    const at::Tensor whole = assemble(world, name, tensor, mine.find(name), keeps);
    if (keeps) dict.tensors[name] = whole;
  }
}

// Of each replica the one of the lowest rank that has it. COLLECTIVE.
void assemble_replicas(const World& world, const std::vector<TensorSlice>& replicas, DictHolder holder,
                       StateDict& dict) {
  const ByName mine(replicas);
  for (const auto& [name, tensor] : gather_holdings(world, replicas)) {
    const int from = tensor.holdings.front().rank;
    const bool travels = holder == DictHolder::kEveryRank || from != 0;
    if (!travels && world.rank != 0) continue;
    const at::Tensor copy = from == world.rank ? mine.find(name)->data.clone()
                                               : at::empty({tensor.numel()}, at::TensorOptions(tensor.dtype));
    if (travels) world.connection->world()->broadcast(copy, from, {"gather a state dict", name, ""});
    if (holder == DictHolder::kEveryRank || world.rank == 0) dict.tensors[name] = copy.view(tensor.shape);
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
  assemble_replicas(world, collected.replicas, holder, dict);
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

  std::set<std::string> not_asked_for() const {
    std::set<std::string> names;
    for (const auto& [name, stored] : stored_) {
      if (asked_.count(name) == 0) names.insert(name);
    }
    return names;
  }

  // Throws Error(kUsage) if anything does not fit. `surplus`: what nobody asked for.
  void check(const std::string& operation, const std::set<std::string>& surplus) {
    for (const std::string& name : surplus) differences_.push_back(name + " belongs to nothing here");
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

// Whose tensors a dict has.
enum class DictOf { kThisRank, kAllRanks };

// COLLECTIVE. `write` gives all requests their numbers.
void fulfil(const StateOf& subject, DictRequests& requests, DictOf whose, const std::function<void()>& write) {
  const World& world = subject.world();
  run_on_every_rank(world, [&] { subject.state().load(requests); });
  std::set<std::string> surplus = requests.not_asked_for();
  if (whose == DictOf::kAllRanks) surplus = checkpoint::unclaimed(world, surplus);
  run_on_every_rank(world, [&] { requests.check(subject.operation(), surplus); });
  run_on_every_rank(world, [&] { subject.state().before_read(); });
  run_on_every_rank(world, write);
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
  // In the order of the names: ranks with other stages of a pipeline take other tensors.
  fulfil(subject, requests, DictOf::kAllRanks, [&] {
    const ByName requested(requests.list);
    for (const auto& [name, given_tensor] : dict.tensors) {
      at::Tensor whole = given_tensor;
      if (travels) {
        whole = whole.is_meta() ? at::empty(whole.sizes(), whole.options().device(at::kCPU)) : whole.contiguous();
        world.connection->world()->broadcast(whole, 0, {"load a state dict", name, ""});
      }
      const TensorSlice* request = requested.find(name);
      if (request == nullptr) continue;
      write_into(*request, whole.contiguous().view(-1).narrow(0, request->begin, request->end - request->begin));
    }
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
  fulfil(subject, requests, DictOf::kThisRank, [&] {
    for (const TensorSlice& request : requests.list) write_into(request, numbers.at(request.name));
  });
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
