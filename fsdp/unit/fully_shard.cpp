#include "fsdp/unit/fully_shard.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <malloc.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/connection.h"
#include "fsdp/deferred/deferred_init.h"
#include "fsdp/group/cut.h"
#include "fsdp/group/registry.h"
#include "fsdp/group/touch_table.h"
#include "fsdp/memory/host_cache.h"
#include "fsdp/unit/buffers.h"
#include "fsdp/unit/context.h"
#include "fsdp/unit/observer.h"
#include "fsdp/unit/sharding/agreement.h"
#include "fsdp/unit/sharding/precision_of.h"
#include "fsdp/unit/sharding/subject.h"
#include "fsdp/unit/sharding/sum_order_check.h"

namespace fsdp {
namespace {

// A unit and what it needs to be seen; shared by the hooks of its parameters, whose life is its own.
struct LiveUnit {
  LiveUnit(std::shared_ptr<Context> context, std::string name) : state(std::move(context), std::move(name)) {}
  Observation observation;
  UnitState state;
};

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::shared_ptr<LiveUnit> unit, ParameterGroup* group, size_t index)
      : unit_(std::move(unit)), group_(group), index_(index) {}

  void operator()(const at::Tensor& parameter) override {
    unit_->state.context->gradient_ready(unit_->state, *group_, index_, parameter);
  }

 private:
  std::shared_ptr<LiveUnit> unit_;
  ParameterGroup* group_;
  size_t index_;
};

std::vector<ParameterGroup*> groups_below(UnitState& unit) {
  std::vector<ParameterGroup*> groups;
  for (UnitState* below : unit.subtree()) {
    for (const auto& group : below->groups) groups.push_back(group.get());
  }
  return groups;
}

// Units whose parameters all lie below the module: they are nested in it. A tied weight alone makes none.
std::vector<UnitState*> nested_units(const SubjectParameters& all, const Context& context) {
  std::map<const ParameterGroup*, std::set<size_t>> found;
  for (const SubjectParameter& parameter : all) {
    const auto member = registry::find_parameter(parameter.tensor);
    if (member) found[member->group.get()].insert(member->index);
  }
  std::vector<UnitState*> nested;
  for (UnitState* unit : context.units()) {
    if (unit == nullptr || unit->parent != nullptr) continue;
    const std::vector<ParameterGroup*> groups = groups_below(*unit);
    const bool below = std::all_of(groups.begin(), groups.end(), [&](const ParameterGroup* group) {
      return found.count(group) > 0 && found.at(group).size() == group->num_parameters();
    });
    if (below && !groups.empty()) nested.push_back(unit);
  }
  return nested;
}

// What names of a nested unit begin with, and what they are to begin with now that the enclosing module is known. A
// unit of several modules has one of each for every module.
using Prefixes = std::map<std::string, std::string>;  // "0." -> "layers.0."

std::string old_prefix(const UnitState& unit, const std::string& name) {
  return unit.names_by_position ? name.substr(0, name.find('.') + 1) : std::string();
}

Prefixes find_prefixes(const SubjectParameters& all, UnitState& unit) {
  const std::vector<ParameterGroup*> groups = groups_below(unit);
  Prefixes prefixes;
  for (const SubjectParameter& parameter : all) {
    const auto member = registry::find_parameter(parameter.tensor);
    if (!member || std::find(groups.begin(), groups.end(), member->group.get()) == groups.end()) continue;
    const std::string& inner = member->group->parameter_name(member->index);
    const std::string prefix = old_prefix(unit, inner);
    const std::string rest = "." + inner.substr(prefix.size());
    if (!parameter.name.ends_with(rest)) continue;
    prefixes.emplace(prefix, parameter.name.substr(0, parameter.name.size() - rest.size() + 1));
  }
  return prefixes;
}

std::string renamed(const UnitState& unit, const Prefixes& prefixes, const std::string& name) {
  const std::string prefix = old_prefix(unit, name);
  const auto found = prefixes.find(prefix);
  return found == prefixes.end() ? name : found->second + name.substr(prefix.size());
}

std::string unit_name(const Prefixes& prefixes) {
  std::string text;
  for (const auto& [before, after] : prefixes) text += (text.empty() ? "" : "+") + after.substr(0, after.size() - 1);
  return text;
}

void name_nested_units(const SubjectParameters& all, const std::vector<UnitState*>& nested) {
  for (UnitState* unit : nested) {
    const Prefixes prefixes = find_prefixes(all, *unit);
    if (prefixes.empty()) continue;
    for (UnitState* below : unit->subtree()) {
      below->name = below == unit ? unit_name(prefixes) : renamed(*unit, prefixes, below->name);
      for (const auto& group : below->groups) {
        std::vector<std::string> names;
        for (size_t i = 0; i < group->num_parameters(); ++i) {
          names.push_back(renamed(*unit, prefixes, group->parameter_name(i)));
        }
        group->rename(below->name, std::move(names));
      }
    }
    unit->names_by_position = false;
  }
}

// Whether the one nested unit is `all` itself, sharded before: its parameters have the same names there.
bool is_same_module(const SubjectParameters& all, const std::vector<UnitState*>& nested) {
  if (nested.size() != 1) return false;
  return std::any_of(all.begin(), all.end(), [&](const SubjectParameter& parameter) {
    const auto member = registry::find_parameter(parameter.tensor);
    return member && member->group->parameter_name(member->index) == parameter.name;
  });
}

int64_t alignment_of(const SubjectParameters& members, const ShardOptions& options) {
  const at::ScalarType main = members.front().tensor.scalar_type();
  const size_t smallest = std::min({c10::elementSize(main), c10::elementSize(options.precision.param.value_or(main)),
                                    c10::elementSize(options.precision.gather.value_or(main)),
                                    c10::elementSize(options.precision.reduce.value_or(main))});
  return layout::kAlignBytes / static_cast<int64_t>(smallest);
}

layout::FlatLayout plan_in_order(const SubjectParameters& members, const ShardOptions& options, int num_shards) {
  std::vector<layout::TensorSpec> specs;
  for (const SubjectParameter& member : members) {
    const auto& sizes = member.tensor.sizes();
    int64_t granule =
        layout::granule_of(options.layout.granularity, {sizes.data(), sizes.size()}, options.layout.block);
    if (options.sum_order == SumOrder::kTree) granule = std::lcm(granule, kTreeBlock);
    // Of a parameter that was cut in columns the ranks of the cut then hold parts of the same rows, so that together
    // they have whole ones to save (checkpoint/state/whole_range.h).
    const auto cut = registry::find_cut(member.tensor);
    if (cut && !cut->is_one_run()) granule = std::lcm(granule, cut->run());
    specs.push_back({member.tensor.numel(), granule});
  }
  return layout::plan(specs, num_shards, alignment_of(members, options));
}

// Sorts `members` by their owner.
layout::FlatLayout plan_balanced(SubjectParameters& members, const ShardOptions& options, layout::OwnerLoads& loads) {
  std::vector<layout::OwnedTensor> tensors;
  std::vector<int64_t> numels;
  for (const SubjectParameter& member : members) {
    const auto& sizes = member.tensor.sizes();
    const double work = layout::orthogonalization_work({sizes.data(), sizes.size()});
    tensors.push_back({member.tensor.numel(), member.tensor.requires_grad() ? work : 0});
    numels.push_back(member.tensor.numel());
  }
  const auto num_owners = static_cast<int64_t>(loads.work().size());
  const std::vector<int64_t> owners = loads.deal(tensors);
  layout::OwnedLayout plan = layout::plan_owned(numels, owners, num_owners, alignment_of(members, options));
  const SubjectParameters given = std::exchange(members, {});
  for (const size_t i : plan.order) members.push_back(given[i]);
  return std::move(plan.layout);
}

// May sort `members`.
layout::FlatLayout plan_group(SubjectParameters& members, const ShardOptions& options, int num_shards,
                              Context& context) {
  if (options.layout.owners == layout::Owners::kInOrder) return plan_in_order(members, options, num_shards);
  return plan_balanced(members, options, context.owner_loads(num_shards));
}

void check_mesh(const Mesh& mesh, Strategy strategy) {
  for (const MeshAxis& axis : mesh.axes()) {
    static const std::set<std::string> known = {"pp", "replicate", "shard", "tp", "ep"};
    const bool is_known = known.count(axis.name) > 0;
    FSDP_CHECK(
        is_known || axis.size == 1, "[fully_shard] mesh ", mesh.describe(), ": axis '", axis.name, "' has ", axis.size,
        " ranks, expected the axes 'pp', 'replicate', 'shard', 'tp' and 'ep'. Use Mesh::shard(world), or Mesh(world, "
        "{{\"replicate\", hosts}, {\"shard\", ranks_per_host}}); Mesh::flattened() makes one axis of several.");
  }
  FSDP_CHECK(traits(strategy).mesh == MeshNeed::kShardAxis || mesh.has("replicate"), "[fully_shard] strategy ",
             name(strategy), " on mesh ", mesh.describe(), ": it needs an axis 'replicate' too. Use Mesh(world, ",
             "{{\"replicate\", hosts}, {\"shard\", ranks_per_host}}).");
}

// Parameters that share dtypes, trainability, mesh and strategy.
struct GroupPlan {
  SubjectParameters members;
  Mesh mesh;
  Strategy strategy;
  Precision precision;
};

// In the module's order.
std::vector<GroupPlan> split_into_groups(const SubjectParameters& parameters, const Mesh& mesh,
                                         const ShardOptions& options) {
  std::vector<GroupPlan> groups;
  for (const SubjectParameter& parameter : parameters) {
    const Mesh own = options.mesh_of ? options.mesh_of(parameter.name).value_or(mesh) : mesh;
    const Precision precision = precision_of(parameter, options.precision);
    const bool replicated = options.replicate && options.replicate(parameter.name);
    const Strategy strategy = replicated ? Strategy::kNoShard : options.strategy;
    const auto fits = [&](const GroupPlan& group) {
      const at::Tensor& first = group.members.front().tensor;
      const auto dtype = first.scalar_type();
      return group.precision.param.value_or(dtype) == precision.param.value_or(dtype) &&
             group.precision.gather == precision.gather && dtype == parameter.tensor.scalar_type() &&
             first.requires_grad() == parameter.tensor.requires_grad() && group.mesh.describe() == own.describe() &&
             group.strategy == strategy;
    };
    const auto found = std::find_if(groups.begin(), groups.end(), fits);
    if (found == groups.end()) {
      FSDP_CHECK(own.world().connection == mesh.world().connection, "[fully_shard] '", parameter.name,
                 "': ShardOptions::mesh_of gave a mesh of another world.");
      check_mesh(own, options.strategy);
      groups.push_back({{parameter}, own, strategy, precision});
    } else {
      found->members.push_back(parameter);
    }
  }
  return groups;
}

void add_group(const std::shared_ptr<LiveUnit>& unit, SubjectParameters members, const ShardOptions& options,
               const GroupLinks& links) {
  GroupSpec spec;
  spec.unit_name = unit->state.name;
  spec.part = static_cast<int>(unit->state.groups.size());
  const int num_shards = links.shard->size() * (links.replicate ? links.replicate->size() : 1);
  spec.layout = plan_group(members, options, num_shards, *unit->state.context);
  for (const SubjectParameter& member : members) {
    spec.names.push_back(member.name);
    spec.parameters.push_back(member.tensor);
  }
  spec.device = unit->state.context->device();
  spec.strategy = options.strategy;
  spec.sum_order = options.sum_order;
  spec.precision = options.precision;
  spec.whole_weights = options.whole_weights;
  spec.main_weights = options.main_weights;
  spec.disk = unit->state.context->disk_for(options);
  spec.links = links;
  spec.allocator = unit->state.context->allocator();
  spec.fp8_agreement = unit->state.context->fp8_agreement();
  spec.owner = unit->state.context;
  auto group = std::make_shared<ParameterGroup>(std::move(spec));
  unit->state.groups.push_back(group);
  const auto announce = [&](const c10::StorageImpl* storage, Role role) {
    if (storage != nullptr) TouchTable::instance().add(storage, {group.get(), &unit->state, role});
  };
  if (group->residence() != Residence::kAliased || !group->is_alone()) {
    announce(group->main_weight().local().storage().unsafeGetStorageImpl(), Role::kMainWeight);
  }
  announce(group->unsharded().local().storage().unsafeGetStorageImpl(), Role::kUnsharded);
  announce(group->gradient_marks().storage(), Role::kGradientMark);
  for (size_t i = 0; i < members.size(); ++i) {
    registry::add_parameter(members[i].tensor, group, i);
    registry::add_leaf(group->leaf(i), group, i);
    if (const auto cut = registry::find_cut(members[i].tensor)) registry::add_cut(group->leaf(i), *cut);
    torch::autograd::impl::set_post_acc_grad_hooks(members[i].tensor,
                                                   std::make_unique<GradientHook>(unit, group.get(), i));
  }
}

void check_options(const Mesh& mesh, const ShardOptions& options) {
  check_mesh(mesh, options.strategy);
  check_precision(options);
  FSDP_CHECK(
      options.layout.owners == layout::Owners::kInOrder || options.layout.granularity == layout::Granularity::kTensor,
      "[fully_shard] ShardOptions::layout: got balanced owners of pieces, expected owners of whole tensors. Set "
      "granularity to layout::Granularity::kTensor.");
  try {
    schedule::check(options.schedule);
  } catch (const std::invalid_argument& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

// Ranks that differ from this one along some of these axes only, in their order in the world.
template <class IsOf>
std::vector<int> ranks_along(const Mesh& mesh, const IsOf& is_of) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (is_of(axis.name)) axes.push_back(axis.name);
  }
  if (axes.empty()) return {mesh.world().rank};
  std::vector<int> ranks = mesh.flattened(axes, axes.front()).ranks(axes.front());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Ranks that have data of their own for the same weights: all but those that differ along other axes from this one.
std::vector<int> data_ranks(const Mesh& mesh) {
  return ranks_along(mesh, [](const std::string& axis) { return axis == "replicate" || axis == "shard"; });
}

// All that have the same layers: those that differ along any axis but "pp".
std::vector<int> stage_ranks(const Mesh& mesh) {
  return ranks_along(mesh, [](const std::string& axis) { return axis != "pp"; });
}

// Both in order. Fewer parts than ranks: some ranks have the same one.
bool is_among(const std::vector<int>& some, const std::vector<int>& all) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

void check_cuts(const SubjectParameters& parameters, const Mesh& mesh) {
  for (const SubjectParameter& parameter : parameters) {
    const auto cut = registry::find_cut(parameter.tensor);
    const bool is_expert = cut && mesh.size("ep") > 1 && cut->ranks->ranks() == mesh.ranks("ep");
    FSDP_CHECK(
        !cut || is_expert || is_among(cut->ranks->ranks(), mesh.ranks("tp")), "[fully_shard] '", parameter.name,
        "' was cut over other ranks than those along axis 'tp' or 'ep' of mesh ", mesh.describe(),
        ". Shard with the mesh that the module was made parallel with; ShardOptions::mesh_of must keep the axis.");
    FSDP_CHECK(is_expert || mesh.size("ep") == 1, "[fully_shard] '", parameter.name,
               "' is the same on all ranks along axis 'ep' of mesh ", mesh.describe(),
               ", expected experts alone, which are cut over it. Shard it over mesh.flattened({\"shard\", \"ep\"}, "
               "\"shard\").");
  }
}

// What ranks along "tp" have in common: parameters that are not cut.
void agree_over_tp(const UnitDescription& unit, const Mesh& mesh) {
  if (mesh.size("tp") == 1) return;
  UnitDescription common = unit;
  common.names.clear();
  common.parameters.clear();
  for (size_t i = 0; i < unit.names.size(); ++i) {
    if (registry::find_cut(unit.parameters[i])) continue;
    common.names.push_back(unit.names[i]);
    common.parameters.push_back(unit.parameters[i]);
  }
  agree_on_unit(common, *mesh.world().connection->group(mesh.ranks("tp")));
}

GroupLinks make_links(const Mesh& mesh, Strategy strategy, const Context& context) {
  comm::Connection& connection = *mesh.world().connection;
  const c10::Device device = context.device();
  const auto connect = [&](const std::vector<int>& ranks, comm::Purpose purpose) {
    auto comm = connection.group(ranks, device.is_cpu() ? comm::Purpose::kGather : purpose);
    comm->open(device);
    return comm;
  };
  using comm::Purpose;
  GroupLinks links;
  links.gather_lane = context.gather_lane();
  links.reduce_lane = context.reduce_lane();
  const bool one_group = traits(strategy).reduce == ReduceKind::kAllReduce;
  const std::vector<int> ranks = one_group ? data_ranks(mesh) : mesh.ranks("shard");
  links.shard = connect(ranks, Purpose::kGather);
  links.shard_reduce = connect(ranks, Purpose::kReduce);
  if (one_group) return links;
  links.host_places = connection.hosts().places_of(ranks);
  if (device.is_cpu() && connection.host_weights() == HostWeightCopies::kOne && !links.host_places.empty()) {
    links.host = connection.hosts().links();
  }
  if (mesh.size("replicate") == 1) return links;
  links.replicate = connect(mesh.ranks("replicate"), Purpose::kReduce);
  if (traits(strategy).shards_over_replicas) {
    links.replicate_gather = connect(mesh.ranks("replicate"), Purpose::kGather);
  }
  return links;
}

// The handle through which hooks, children and scopes hold the state.
std::shared_ptr<UnitState> make_state(const std::shared_ptr<LiveUnit>& unit, const Subject& subject, const Mesh& mesh,
                                      const ShardOptions& options) {
  std::shared_ptr<UnitState> state(unit, &unit->state);
  state->self = state;
  state->modules = subject.modules;
  state->names_by_position = subject.modules.size() > 1;
  // Along "ep" tokens come from other ranks' batches, and their gradients with them.
  state->num_ranks = mesh.size("replicate") * mesh.size("shard") * mesh.size("ep");
  state->replica_reduce = options.replica_reduce;
  state->precision = options.precision;
  state->context->set_unused(*state, options.unused);
  state->buffer_sync = options.buffers;
  state->writes = options.writes;
  if (options.buffers != BufferSync::kPerRank) state->buffers = buffers_of(subject);
  return state;
}

// Ignored parameters that no other unit averages.
WeakTensors to_average(const ShardOptions& options, const Context& context) {
  WeakTensors list;
  if (options.ignored_gradients == IgnoredGradients::kPerRank) return list;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const UnitState* unit : context.units()) {
    if (unit == nullptr) continue;
    for (const auto& each : unit->averaged) known.insert(each.lock().get());
  }
  for (const at::Tensor& parameter : options.ignored_parameters) {
    if (known.insert(parameter.unsafeGetTensorImpl()).second) list.emplace_back(parameter.getIntrusivePtr());
  }
  return list;
}

Unit shard(const Subject& subject, const Mesh& mesh, const ShardOptions& options) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode normal_tensors(false);
  const at::AutoGradMode still_no_grad(false);
  check_options(mesh, options);
  const c10::Device device = device_of(subject, options);
  const auto context = Context::of(mesh.world(), {options.schedule, options.allocator}, device);
  context->on_library_entry();
  context->set_ranks_of_step(stage_ranks(mesh));
  const bool was_deferred = materialize_subject(subject);
  const SubjectParameters parameters = unowned_parameters(subject.parameters, options, device);
  const WeakTensors averaged = to_average(options, *context);
  context->ignore(options.ignored_parameters);
  const std::vector<UnitState*> nested = nested_units(subject.parameters, *context);
  FSDP_CHECK(!parameters.empty() || (!nested.empty() && !is_same_module(subject.parameters, nested)),
             "[fully_shard] the module has no parameters to shard: it has ", subject.parameters.size(),
             ", and all are ignored or belong to units that are nested elsewhere. Shard each module once, ",
             "inner modules first.");
  const std::vector<GroupPlan> groups = split_into_groups(parameters, mesh, options);
  for (const GroupPlan& group : groups) {
    check_cuts(group.members, group.mesh);
    check_sum_order(group.members, options, device);
  }
  const GroupLinks links = make_links(mesh, options.strategy, *context);
  UnitDescription description{{}, {}, &options};
  for (const SubjectParameter& parameter : parameters) {
    description.names.push_back(parameter.name);
    description.parameters.push_back(parameter.tensor);
  }
  for (const GroupPlan& group : groups) {
    description.meshes += c10::str(group.mesh.describe(), " ", name(group.strategy), ";");
  }
  agree_on_unit(description, *links.shard);
  if (links.replicate) agree_on_unit(description, *links.replicate);
  agree_over_tp(description, mesh);
  if (options.initial_weights == InitialWeights::kBroadcast) {
    make_equal(*context->ranks_of_step(), buffers_of(subject), BufferSync::kBroadcast);
  }
  cast_buffers(subject, options.precision);
  name_nested_units(subject.parameters, nested);
  const auto unit = std::make_shared<LiveUnit>(context, "root");
  const std::shared_ptr<UnitState> state = make_state(unit, subject, mesh, options);
  state->averaged = averaged;
  for (UnitState* child : nested) {
    context->nest(*child, *state);
    if (parameters.empty()) child->held_parent = state;
  }
  for (const GroupPlan& group : groups) {
    ShardOptions own = options;
    own.precision = group.precision;
    own.strategy = group.strategy;
    add_group(unit, group.members, own, make_links(group.mesh, group.strategy, *context));
  }
  state->set_reshard_after_forward(
      options.reshard_after_forward.value_or(traits(options.strategy).reshard_after_forward));
  // The whole tensors are gone; who keeps what is freed would hold the holes between shards.
  if (was_deferred) {
    malloc_trim(0);
    trim_host_cache();
  }
  return Unit(state);
}

}  // namespace

Unit fully_shard(torch::nn::Module& module, const Mesh& mesh, const ShardOptions& options) {
  return shard(subject_of(module), mesh, options);
}

Unit fully_shard(const std::vector<torch::nn::Module*>& modules, const Mesh& mesh, const ShardOptions& options) {
  return shard(subject_of(modules), mesh, options);
}

Unit fully_shard(torch::jit::Module& module, const Mesh& mesh, const ShardOptions& options) {
  // A kernel that the executor compiles from several operators is none itself: nobody would see what it reads.
  torch::jit::setTensorExprFuserEnabled(false);
  return shard(subject_of(module), mesh, options);
}

}  // namespace fsdp
