#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/unit/options.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace fsdp {

struct SubjectParameter {
  std::string name;
  at::Tensor tensor;
  std::optional<ModuleKind> kind = {};  // of the module that it belongs to
};
using SubjectParameters = std::vector<SubjectParameter>;

struct SubjectBuffer {
  at::Tensor tensor;
  std::optional<ModuleKind> kind = {};  // likewise
};

// What fully_shard() was called with. All functions are local.
struct Subject {
  SubjectParameters parameters;
  std::vector<SubjectBuffer> buffers;
  std::vector<const void*> modules;
};

std::vector<at::Tensor> buffers_of(const Subject& subject);

Subject subject_of(const torch::nn::Module& module);
// Names begin with the module's position. Throws Error(kUsage) for modules that contain each other.
Subject subject_of(const std::vector<torch::nn::Module*>& modules);
// Throws Error(kUsage) for a module without parameters.
Subject subject_of(const torch::jit::Module& module);

// Tensors whose construction was put off get their values now; the default generator goes on where it was. Returns
// whether there were any.
bool materialize_subject(const Subject& subject);

// Buffers that no nested unit has seen get the dtype of Precision::buffers, in place, as Module::to() does it.
void cast_buffers(const Subject& subject, const Precision& precision);

// Where the weights of a subject that has come to life will be: where the first of its parameters is, unless options
// say.
c10::Device device_of(const Subject& subject, const ShardOptions& options);

// The distinct parameters that no unit owns and nobody asked to leave alone. Throws Error(kUsage), naming the first
// that cannot be sharded: what is no floating-point leaf on `device` with memory of its own. They become contiguous.
SubjectParameters unowned_parameters(const SubjectParameters& all, const ShardOptions& options, c10::Device device);

}  // namespace fsdp
