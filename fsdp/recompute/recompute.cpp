#include "fsdp/recompute/recompute.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/recompute_region.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The generator that operators on `device` draw from.
at::Tensor random_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(c10::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The CPU, and the GPUs that inputs of a region are on: the devices that it computes with.
std::vector<c10::Device> devices_of(const variable_list& inputs) {
  std::vector<c10::Device> devices{c10::kCPU};
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.is_cuda()) continue;
    if (std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  }
  return devices;
}

// Random numbers and autocast as they were at the first run; afterwards as they were before, also when it throws. The
// state of a GPU's generator is two numbers that the host keeps, so nothing waits for the GPU.
class Replay {
 public:
  struct OfDevice {
    explicit OfDevice(c10::Device where)
        : device(where),
          random(random_state(where)),
          autocast(at::autocast::is_autocast_enabled(where.type())),
          autocast_dtype(at::autocast::get_autocast_dtype(where.type())) {}
    c10::Device device;
    at::Tensor random;
    bool autocast;
    at::ScalarType autocast_dtype;
  };
  struct Conditions {
    explicit Conditions(const std::vector<c10::Device>& devices) : of_devices(devices.begin(), devices.end()) {}
    std::vector<c10::Device> devices() const {
      std::vector<c10::Device> list;
      for (const OfDevice& item : of_devices) list.push_back(item.device);
      return list;
    }
    std::vector<OfDevice> of_devices;
    bool autocast_cache = at::autocast::is_autocast_cache_enabled();
  };

  explicit Replay(const Conditions& conditions) : before_(conditions.devices()) { set(conditions); }
  ~Replay() { set(before_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  static void set(const Conditions& conditions) {
    for (const OfDevice& item : conditions.of_devices) {
      set_random_state(item.device, item.random);
      at::autocast::set_autocast_enabled(item.device.type(), item.autocast);
      at::autocast::set_autocast_dtype(item.device.type(), item.autocast_dtype);
    }
    at::autocast::set_autocast_cache_enabled(conditions.autocast_cache);
  }

  Conditions before_;
};

// What the second run needs besides the inputs; kept by the graph.
struct Region : torch::CustomClassHolder {
  Region(TensorListFunction region_function, const variable_list& inputs)
      : function(std::move(region_function)), conditions(devices_of(inputs)) {
    for (const at::Tensor& input : inputs) has_input.push_back(input.defined());
  }

  // Graphs know defined tensors only.
  variable_list run(const variable_list& defined) {
    variable_list inputs;
    auto next = defined.begin();
    for (const bool has : has_input) inputs.push_back(has ? *next++ : at::Tensor());
    variable_list outputs = function(inputs);
    has_output.clear();
    for (const at::Tensor& output : outputs) has_output.push_back(output.defined());
    std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });
    return outputs;
  }

  TensorListFunction function;
  Replay::Conditions conditions;
  std::vector<bool> has_input;
  std::vector<bool> has_output;
};

// inputs[0] only makes the outputs need gradients when nothing but captured parameters does.
struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<Region>& region) {
    context->save_for_backward(inputs.vec());
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    const RecomputeRegion first_run;
    return region->run(inputs.slice(1).vec());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto region = c10::static_intrusive_pointer_cast<Region>(context->saved_data["region"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    variable_list inputs;
    for (size_t i = 1; i < saved.size(); ++i) {
      inputs.push_back(saved[i].detach().requires_grad_(saved[i].requires_grad()));
    }
    variable_list outputs;
    {
      const Replay replay(region->conditions);
      const at::AutoGradMode with_gradients(true);
      outputs = region->run(inputs);
    }
    FSDP_CHECK(outputs.size() == gradients.size(), "[recompute] the second run returned ", outputs.size(),
               " tensors, the first ", gradients.size(), ". A region must compute the same both times.");
    run_backward(outputs, gradients);
    variable_list result{at::Tensor()};
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.emplace_back();  // of the region
    return result;
  }

  static void run_backward(const variable_list& outputs, const variable_list& gradients) {
    variable_list roots;
    variable_list seeds;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
  }
};

}  // namespace

std::vector<at::Tensor> recompute(const TensorListFunction& function, const std::vector<at::Tensor>& inputs) {
  FSDP_CHECK(function != nullptr, "[recompute] got an empty function.");
  if (!at::GradMode::is_enabled()) return function(inputs);
  variable_list all{at::zeros({0}).requires_grad_()};
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(all), [](const at::Tensor& t) { return t.defined(); });
  const auto region = c10::make_intrusive<Region>(function, inputs);
  const variable_list defined = RecomputeFunction::apply(at::TensorList(all), region);
  variable_list outputs;
  auto next = defined.begin();
  for (const bool has : region->has_output) outputs.push_back(has ? *next++ : at::Tensor());
  return outputs;
}

at::Tensor recompute(const TensorFunction& function, const at::Tensor& input) {
  FSDP_CHECK(function != nullptr, "[recompute] got an empty function.");
  const TensorListFunction as_list = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs.front())};
  };
  return recompute(as_list, std::vector<at::Tensor>{input}).front();
}

at::Tensor recompute_every(int64_t k, const std::vector<TensorFunction>& blocks, const at::Tensor& input) {
  FSDP_CHECK(k >= 0, "[recompute_every] k: got ", k, ", expected 0 (none) or a positive number.");
  at::Tensor x = input;
  for (size_t i = 0; i < blocks.size(); ++i) {
    x = k > 0 && static_cast<int64_t>(i) % k == 0 ? recompute(blocks[i], x) : blocks[i](x);
  }
  return x;
}

}  // namespace fsdp
