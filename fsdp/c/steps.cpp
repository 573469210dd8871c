// Steps of the C interface.
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/c/guard.h"
#include "fsdp/c/handles.h"
#include "fsdp/group/parameters.h"
#include "fsdp/optim/clip_grad_norm.h"
#include "fsdp/unit/scopes.h"

namespace fsdp::c {
namespace {

at::ScalarType scalar_type_of(fsdp_dtype dtype) {
  switch (dtype) {
    case FSDP_FLOAT32:
      return at::kFloat;
    case FSDP_FLOAT64:
      return at::kDouble;
    case FSDP_INT32:
      return at::kInt;
    case FSDP_INT64:
      return at::kLong;
    case FSDP_UINT8:
      return at::kByte;
  }
  FSDP_THROW(kUsage, "[inputs] dtype: got ", static_cast<int>(dtype), ", expected one of fsdp_dtype.");
}

// A copy: TorchScript may keep what it was given.
at::Tensor tensor_of(const fsdp_array& array) {
  FSDP_CHECK(array.dims >= 0 && (array.dims == 0 || array.sizes != nullptr), "[inputs] dims: got ", array.dims,
             " and sizes ", array.sizes == nullptr ? "NULL" : "given", ", expected a size for each dimension.");
  std::vector<int64_t> sizes(array.sizes, array.sizes + array.dims);
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    FSDP_CHECK(size >= 0, "[inputs] sizes: got ", size, ", expected sizes from 0 on.");
    numel *= size;
  }
  FSDP_CHECK(numel == 0 || array.data != nullptr, "[inputs] data: got NULL, expected ", numel, " numbers.");
  return at::from_blob(const_cast<void*>(array.data), sizes, scalar_type_of(array.dtype)).clone();
}

// TorchScript's interpreter keeps the text of an error and forgets its type. Of ours, only a lost peer must not be
// taken for a mistake of the model.
c10::IValue run_forward(ScriptModel& script, std::vector<c10::IValue> inputs) {
  try {
    return script.module.forward(std::move(inputs));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const size_t lost_peer = text.find("[comm] ");
    if (lost_peer == std::string::npos) throw;
    throw Error(ErrorCode::kCommunication, text.substr(lost_peer));
  }
}

// What forward() returns for these inputs.
at::Tensor output_of(ScriptModel& script, const fsdp_array* inputs, size_t count, const char* function) {
  FSDP_CHECK(count == 0 || inputs != nullptr, "[", function, "] inputs: got NULL, expected ", count, " arrays.");
  std::vector<c10::IValue> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) values.emplace_back(tensor_of(inputs[i]));
  const c10::IValue output = run_forward(script, std::move(values));
  FSDP_CHECK(output.isTensor(), "[", function, "] forward() of the model: got a ", output.tagKind(),
             ", expected a tensor. Export a model that returns one.");
  return output.toTensor();
}

ScriptModel& sharded(ScriptModel& script, const char* function) {
  FSDP_CHECK(script.root.has_value(), "[", function, "] the model is not sharded. Call fsdp_shard() first.");
  return script;
}

AdamWOptions adamw_options_of(const fsdp_adamw_options* given_options) {
  const fsdp_adamw_options standard = FSDP_ADAMW_OPTIONS_DEFAULT;
  const fsdp_adamw_options& wanted = given_options == nullptr ? standard : *given_options;
  FSDP_CHECK(wanted.struct_size == sizeof(fsdp_adamw_options), "[fsdp_adamw] options.struct_size: got ",
             wanted.struct_size, ", expected ", sizeof(fsdp_adamw_options),
             ". Start from FSDP_ADAMW_OPTIONS_DEFAULT, and compile with the header of this library.");
  AdamWOptions options;
  options.lr = wanted.lr;
  options.beta1 = wanted.beta1;
  options.beta2 = wanted.beta2;
  options.eps = wanted.eps;
  options.weight_decay = wanted.weight_decay;
  return options;
}

double loss_and_gradients(ScriptModel& script, const fsdp_array* inputs, size_t count, double scale) {
  const at::Tensor loss = output_of(script, inputs, count, "fsdp_backward");
  FSDP_CHECK(loss.numel() == 1 && loss.requires_grad(), "[fsdp_backward] forward() of the model: got a tensor of ",
             loss.numel(), " numbers", loss.requires_grad() ? "" : " without gradient",
             ", expected the loss, one number. Export a model that returns its loss.");
  (scale == 1 ? loss : loss.mul(scale)).backward();
  return loss.item<double>();
}

void write_output(const at::Tensor& output, float* to, size_t capacity, size_t& written) {
  const at::Tensor numbers = output.to(at::kFloat).contiguous();
  written = static_cast<size_t>(numbers.numel());
  FSDP_CHECK(written <= capacity, "[fsdp_forward] capacity: got ", capacity, ", expected room for ", written,
             " numbers.");
  if (written != 0) std::memcpy(&given(to, "fsdp_forward", "output"), numbers.const_data_ptr<float>(), 4 * written);
}

// The norm is wanted, or needed to clip by it.
double clipped_step(fsdp_optimizer& optimizer, double max_norm) {
  const double limit = max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity();
  const GradNorm norm = grad_norm(parameters(optimizer.script->module), limit);
  optimizer.adamw.step(norm.factor);
  return norm.value();
}

}  // namespace
}  // namespace fsdp::c

extern "C" {

fsdp_status fsdp_backward(fsdp_model* model, const fsdp_array* inputs, size_t count, double scale,
                          fsdp_microbatch microbatch, double* loss) {
  return fsdp::c::guarded([&] {
    auto& script = fsdp::c::sharded(*fsdp::c::given(model, "fsdp_backward", "model").script, "fsdp_backward");
    const fsdp::Microbatch scope(*script.root, microbatch != FSDP_MORE_TO_COME);
    const double value = fsdp::c::loss_and_gradients(script, inputs, count, scale);
    if (loss != nullptr) *loss = value;
  });
}

fsdp_status fsdp_forward(fsdp_model* model, const fsdp_array* inputs, size_t count, float* output, size_t capacity,
                         size_t* written) {
  return fsdp::c::guarded([&] {
    auto& script = fsdp::c::sharded(*fsdp::c::given(model, "fsdp_forward", "model").script, "fsdp_forward");
    const fsdp::ForwardOnly scope(*script.root);
    fsdp::c::write_output(fsdp::c::output_of(script, inputs, count, "fsdp_forward"), output, capacity,
                          fsdp::c::given(written, "fsdp_forward", "written"));
  });
}

fsdp_status fsdp_adamw(const fsdp_model* model, const fsdp_adamw_options* options, fsdp_optimizer** optimizer) {
  return fsdp::c::guarded([&] {
    const auto& script = fsdp::c::given(model, "fsdp_adamw", "model").script;
    fsdp::c::sharded(*script, "fsdp_adamw");
    fsdp_optimizer*& slot = fsdp::c::given(optimizer, "fsdp_adamw", "optimizer");
    slot =
        new fsdp_optimizer{script, fsdp::AdamW(fsdp::parameters(script->module), fsdp::c::adamw_options_of(options))};
  });
}

void fsdp_optimizer_free(fsdp_optimizer* optimizer) {
  fsdp::c::guarded([&] { delete optimizer; });
}

fsdp_status fsdp_set_lr(fsdp_optimizer* optimizer, double lr) {
  return fsdp::c::guarded([&] { fsdp::c::given(optimizer, "fsdp_set_lr", "optimizer").adamw.set_lr(lr); });
}

fsdp_status fsdp_step(fsdp_optimizer* optimizer, double max_norm, double* norm) {
  return fsdp::c::guarded([&] {
    fsdp_optimizer& stepped = fsdp::c::given(optimizer, "fsdp_step", "optimizer");
    FSDP_CHECK(max_norm >= 0, "[fsdp_step] max_norm: got ", max_norm, ", expected a norm, or 0 for no clipping.");
    if (max_norm == 0 && norm == nullptr) {
      stepped.adamw.step();
    } else {
      const double before = fsdp::c::clipped_step(stepped, max_norm);
      if (norm != nullptr) *norm = before;
    }
    fsdp::zero_grad(stepped.script->module);
  });
}

}  // extern "C"
