// The job and the model of the C interface.
#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/serialization/import.h>

#include <string>

#include "fsdp/c/guard.h"
#include "fsdp/c/handles.h"
#include "fsdp/comm/collectives.h"
#include "fsdp/comm/init.h"
#include "fsdp/unit/shard_where.h"

namespace fsdp::c {
namespace {

Strategy strategy_named(fsdp_strategy strategy) {
  switch (strategy) {
    case FSDP_NO_SHARD:
      return Strategy::kNoShard;
    case FSDP_OPTIM:
      return Strategy::kOptim;
    case FSDP_OPTIM_GRADS:
      return Strategy::kOptimGrads;
    case FSDP_OPTIM_GRADS_PARAMS:
      return Strategy::kOptimGradsParams;
  }
  FSDP_THROW(kUsage, "[fsdp_shard] strategy: got ", static_cast<int>(strategy), ", expected one of fsdp_strategy.");
}

ShardOptions shard_options_of(const fsdp_shard_options* given_options) {
  const fsdp_shard_options standard = FSDP_SHARD_OPTIONS_DEFAULT;
  const fsdp_shard_options& wanted = given_options == nullptr ? standard : *given_options;
  FSDP_CHECK(wanted.struct_size == sizeof(fsdp_shard_options), "[fsdp_shard] options.struct_size: got ",
             wanted.struct_size, ", expected ", sizeof(fsdp_shard_options),
             ". Start from FSDP_SHARD_OPTIONS_DEFAULT, and compile with the header of this library.");
  FSDP_CHECK(wanted.precision == FSDP_FP32 || wanted.precision == FSDP_BF16, "[fsdp_shard] precision: got ",
             static_cast<int>(wanted.precision), ", expected one of fsdp_precision.");
  ShardOptions options;
  options.strategy = strategy_named(wanted.strategy);
  if (wanted.precision == FSDP_BF16) options.precision = Precision::bf16();
  return options;
}

// What the caller's function says, with its refusals as errors.
ScriptWrapPolicy policy_of(fsdp_unit_choice choose, void* context) {
  return [choose, context](const std::string& name, const std::string& type, int64_t numel) {
    const int answer = choose == nullptr ? 0 : choose(context, name.c_str(), type.c_str(), numel);
    FSDP_CHECK(answer >= 0, "[fsdp_shard] the callback refused '", name, "' of class ", type, " with ", answer, ".");
    return answer != 0;
  };
}

torch::jit::Module open_script(const std::string& path) {
  try {
    torch::jit::Module module = torch::jit::load(path, at::Device(at::kCPU));
    module.train();
    return module;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    FSDP_THROW(kCheckpoint, "[fsdp_model_open] ", path, ": ", text.substr(0, text.find('\n')),
               ". Expected a file that torch.jit.save() wrote.");
  }
}

}  // namespace
}  // namespace fsdp::c

extern "C" {

int fsdp_c_version(void) { return FSDP_C_VERSION; }

const char* fsdp_last_error(void) { return fsdp::c::last_error(); }

fsdp_status fsdp_init(fsdp_world** world) {
  return fsdp::c::guarded([&] { fsdp::c::given(world, "fsdp_init", "world") = new fsdp_world{fsdp::init()}; });
}

void fsdp_world_free(fsdp_world* world) {
  fsdp::c::guarded([&] { delete world; });
}

int fsdp_rank(const fsdp_world* world) { return world == nullptr ? -1 : world->world.rank; }

int fsdp_size(const fsdp_world* world) { return world == nullptr ? -1 : world->world.size; }

fsdp_status fsdp_sum(const fsdp_world* world, double* values, size_t count) {
  return fsdp::c::guarded([&] {
    const fsdp::World& ranks = fsdp::c::given(world, "fsdp_sum", "world").world;
    if (count == 0) return;
    at::Tensor mine =
        at::from_blob(&fsdp::c::given(values, "fsdp_sum", "values"), {static_cast<int64_t>(count)}, at::kDouble);
    mine.copy_(fsdp::sum_over_ranks(ranks, mine.clone()));
  });
}

fsdp_status fsdp_model_open(const char* path, fsdp_model** model) {
  return fsdp::c::guarded([&] {
    fsdp_model*& slot = fsdp::c::given(model, "fsdp_model_open", "model");
    auto script = std::make_shared<fsdp::c::ScriptModel>();
    script->module = fsdp::c::open_script(&fsdp::c::given(path, "fsdp_model_open", "path"));
    slot = new fsdp_model{std::move(script)};
  });
}

void fsdp_model_free(fsdp_model* model) {
  fsdp::c::guarded([&] { delete model; });
}

fsdp_status fsdp_shard(fsdp_model* model, const fsdp_world* world, fsdp_unit_choice choose, void* context,
                       const fsdp_shard_options* options) {
  return fsdp::c::guarded([&] {
    fsdp::c::ScriptModel& script = *fsdp::c::given(model, "fsdp_shard", "model").script;
    FSDP_CHECK(!script.root, "[fsdp_shard] the model is sharded already. Shard each model once.");
    const fsdp::Mesh mesh = fsdp::Mesh::shard(fsdp::c::given(world, "fsdp_shard", "world").world);
    script.root =
        fsdp::shard_where(script.module, fsdp::c::policy_of(choose, context), mesh, fsdp::c::shard_options_of(options));
  });
}

fsdp_status fsdp_set_training(fsdp_model* model, int training) {
  return fsdp::c::guarded(
      [&] { fsdp::c::given(model, "fsdp_set_training", "model").script->module.train(training != 0); });
}

}  // extern "C"
