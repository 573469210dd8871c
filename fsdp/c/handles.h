#pragma once

#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <optional>

#include "fsdp/c/fsdp_c.h"
#include "fsdp/mesh/mesh.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/unit/unit.h"

namespace fsdp::c {

// Shared by a model's handle and its optimizer's, which may be freed in any order.
struct ScriptModel {
  torch::jit::Module module;
  std::optional<Unit> root;  // once it is sharded
};

}  // namespace fsdp::c

struct fsdp_world {
  fsdp::World world;
};

struct fsdp_model {
  std::shared_ptr<fsdp::c::ScriptModel> script;
};

struct fsdp_optimizer {
  std::shared_ptr<fsdp::c::ScriptModel> script;
  fsdp::AdamW adamw;
};
