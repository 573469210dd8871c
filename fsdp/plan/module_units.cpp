#include "fsdp/plan/module_units.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/group/registry.h"
#include "fsdp/unit/sharding/precision_of.h"
#include "fsdp/unit/sharding/subject.h"

namespace fsdp::plan {
namespace {

using Seen = std::unordered_set<const c10::TensorImpl*>;

io::DType planned_dtype(const SubjectParameter& parameter) {
  switch (parameter.tensor.scalar_type()) {
    case at::kFloat:
      return io::DType::F32;
    case at::kBFloat16:
      return io::DType::BF16;
    case at::kHalf:
      return io::DType::F16;
    case at::kDouble:
      return io::DType::F64;
    default:
      FSDP_THROW(kUsage, "[inspect] '", parameter.name, "': got dtype ", parameter.tensor.scalar_type(),
                 ", expected a floating-point type. List it in ShardOptions::ignored_parameters.");
  }
}

Travel travel_of(const SubjectParameter& parameter, const Precision& precision) {
  return precision_of(parameter, precision).gather ? Travel::kAsFp8 : Travel::kAsComputed;
}

class UnitCollector {
 public:
  UnitCollector(torch::nn::Module& root, const InspectOptions& options) : root_(root), options_(options) {
    for (const at::Tensor& tensor : options.shard.ignored_parameters) taken_.insert(tensor.unsafeGetTensorImpl());
    names_.emplace(&root, "root");
    for (const auto& item : root.named_modules("", /*include_self=*/false))
      names_.emplace(item.value().get(), item.key());
    result_.model.name = c10::demangle(typeid(root).name());
  }

  ModuleUnits collect() {
    for (const torch::nn::Module* unit : chosen_units()) {
      check_unit(*unit);
      PlannedUnit planned = take_unit(*unit, names_.at(unit), result_.model.blocks.size());
      if (!planned.parameters.empty()) result_.model.blocks.push_back(std::move(planned));
    }
    result_.model.root = take_unit(root_, "root", result_.model.blocks.size());
    place_roots_parameters();
    FSDP_CHECK(!result_.parameters.empty(), "[inspect] the module has no parameters to shard. All are ignored.");
    return std::move(result_);
  }

 private:
  std::vector<const torch::nn::Module*> chosen_units() {
    std::vector<const torch::nn::Module*> units(options_.units.begin(), options_.units.end());
    if (options_.where) {
      Seen owned = taken_;
      for (const torch::nn::Module* unit : units) own(*unit, owned);
      choose_below(root_, "", owned, units);
    }
    return units;
  }

  static void own(const torch::nn::Module& module, Seen& owned) {
    for (const at::Tensor& tensor : module.parameters()) owned.insert(tensor.unsafeGetTensorImpl());
  }

  // As shard_where().
  void choose_below(const torch::nn::Module& module, const std::string& prefix, Seen& owned,
                    std::vector<const torch::nn::Module*>& units) {
    for (const auto& child : module.named_children()) {
      if (!asked_.insert(child.value().get()).second) continue;
      const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
      choose_below(*child.value(), name, owned, units);
      int64_t numel = 0;
      Seen counted = owned;
      for (const at::Tensor& tensor : child.value()->parameters())
        if (counted.insert(tensor.unsafeGetTensorImpl()).second) numel += tensor.numel();
      if (numel == 0 || !options_.where(name, *child.value(), numel)) continue;
      units.push_back(child.value().get());
      own(*child.value(), owned);
    }
  }

  void check_unit(const torch::nn::Module& unit) {
    FSDP_CHECK(names_.count(&unit) > 0 && &unit != &root_, "[inspect] a module of InspectOptions::units is ",
               names_.count(&unit) > 0 ? "the root itself" : "none below the root",
               ". List modules that the root contains; the root is a unit by itself.");
    std::unordered_set<const torch::nn::Module*> own{&unit};  // some are registered twice
    for (const auto& inner : unit.modules(/*include_self=*/false)) own.insert(inner.get());
    for (const torch::nn::Module* inner : own) {
      FSDP_CHECK(in_units_.insert(inner).second, "[inspect] '", names_.at(inner),
                 "' lies in two units. Units inside units are not planned: list the inner ones, or the outer one.");
    }
  }

  PlannedUnit take_unit(const torch::nn::Module& module, std::string name, size_t index) {
    PlannedUnit unit;
    unit.name = std::move(name);
    const std::string prefix = &module == &root_ ? "" : unit.name + ".";
    const auto& kept = options_.shard.precision.keep_fp32;
    for (const SubjectParameter& parameter : subject_of(module).parameters) {
      const at::Tensor& tensor = parameter.tensor;
      FSDP_CHECK(tensor.defined(), "[inspect] '", parameter.name, "' is undefined. Initialise it first.");
      FSDP_CHECK(!registry::find_parameter(tensor), "[inspect] '", parameter.name,
                 "' is sharded already. Inspect the model before fully_shard().");
      if (!taken_.insert(tensor.unsafeGetTensorImpl()).second) continue;
      const bool keeps = parameter.kind && std::find(kept.begin(), kept.end(), *parameter.kind) != kept.end();
      unit.parameters.push_back({prefix + parameter.name, tensor.sizes().vec(), planned_dtype(parameter),
                                 tensor.requires_grad(), keeps ? ComputeType::kOwn : ComputeType::kOfPrecision,
                                 travel_of(parameter, options_.shard.precision)});
      const auto type = options_.shard.precision.param.value_or(tensor.scalar_type());
      result_.parameters.push_back({tensor, index, keeps ? tensor.scalar_type() : type});
    }
    return unit;
  }

  // Registration tells: a head that is tied to the embedding has a second name behind the units.
  void place_roots_parameters() {
    std::unordered_map<const c10::TensorImpl*, size_t> unit_of;
    for (const ModuleUnits::Parameter& each : result_.parameters)
      unit_of.emplace(each.tensor.unsafeGetTensorImpl(), each.unit);
    const size_t root = result_.model.blocks.size();
    Seen first, others, again;
    bool has_units = root == 0;
    for (const auto& item : root_.named_parameters()) {
      const c10::TensorImpl* tensor = item.value().unsafeGetTensorImpl();
      const auto found = unit_of.find(tensor);
      if (found == unit_of.end()) continue;
      if (found->second != root) {
        has_units = true;
        again.clear();
      } else if (first.count(tensor) > 0) {
        again.insert(tensor);
      } else {
        (has_units ? others : first).insert(tensor);
      }
    }
    result_.model.num_first = first.size();
    result_.model.head = first.empty() || again.empty() ? TiedHead::kNo : TiedHead::kYes;
  }

  torch::nn::Module& root_;
  const InspectOptions& options_;
  std::map<const torch::nn::Module*, std::string> names_;
  std::unordered_set<const torch::nn::Module*> in_units_, asked_;
  Seen taken_;
  ModuleUnits result_;
};

}  // namespace

ModuleUnits units_of(torch::nn::Module& module, const InspectOptions& options) {
  return UnitCollector(module, options).collect();
}

}  // namespace fsdp::plan
