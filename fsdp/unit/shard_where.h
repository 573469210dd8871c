#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/unit/fully_shard.h"

namespace fsdp {

// Whether a module becomes a unit. `name` is its dotted name below the root; `numel` the elements of its parameters
// that no unit inside it has taken.
using WrapPolicy = std::function<bool(const std::string& name, const torch::nn::Module& module, int64_t numel)>;
// Likewise for TorchScript; `type` is its class name without the package: "TransformerEncoderLayer".
using ScriptWrapPolicy = std::function<bool(const std::string& name, const std::string& type, int64_t numel)>;

// Modules of at least this many elements that are not in a unit yet; inner ones come first. ModuleList and ModuleDict
// run nothing and are passed over.
WrapPolicy by_size(int64_t min_numel);
ScriptWrapPolicy script_by_size(int64_t min_numel);

// Modules of these classes: by_type<BlockImpl>().
template <class... Modules>
WrapPolicy by_type() {
  return [](const std::string&, const torch::nn::Module& module, int64_t) {
    return (... || (dynamic_cast<const Modules*>(&module) != nullptr));
  };
}

// Makes units of the modules below `root` that the policy chooses, inner modules first, then of `root` itself, and
// returns the root's. A module that is registered twice is asked about once; one without parameters of its own to shard
// is passed over. COLLECTIVE, as fully_shard(). After: FSDP1's auto_wrap_policy.
Unit shard_where(torch::nn::Module& root, const WrapPolicy& policy, const Mesh& mesh, const ShardOptions& options = {});
Unit shard_where(torch::jit::Module& root, const ScriptWrapPolicy& policy, const Mesh& mesh,
                 const ShardOptions& options = {});

}  // namespace fsdp
