#include "fsdp/recompute/region.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

// The generator that operators on `device` draw from. The state of a GPU's is two numbers that the host keeps, so
// nothing waits for the GPU.
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

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::Device> devices{c10::kCPU};
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.is_cuda()) continue;
    if (std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  }
  return devices;
}

// Sets conditions; afterwards they are as they were before, also when something throws.
class Replay {
 public:
  explicit Replay(const RegionConditions& conditions) : before_(conditions.devices()) { conditions.set(); }
  ~Replay() { before_.set(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  RegionConditions before_;
};

}  // namespace

RegionConditions::OfDevice::OfDevice(c10::Device where)
    : device(where),
      random(random_state(where)),
      autocast(at::autocast::is_autocast_enabled(where.type())),
      autocast_dtype(at::autocast::get_autocast_dtype(where.type())) {}

RegionConditions::RegionConditions(const std::vector<c10::Device>& devices)
    : of_devices(devices.begin(), devices.end()), autocast_cache(at::autocast::is_autocast_cache_enabled()) {}

std::vector<c10::Device> RegionConditions::devices() const {
  std::vector<c10::Device> list;
  for (const OfDevice& item : of_devices) list.push_back(item.device);
  return list;
}

void RegionConditions::set() const {
  for (const OfDevice& item : of_devices) {
    set_random_state(item.device, item.random);
    at::autocast::set_autocast_enabled(item.device.type(), item.autocast);
    at::autocast::set_autocast_dtype(item.device.type(), item.autocast_dtype);
  }
  at::autocast::set_autocast_cache_enabled(autocast_cache);
}

Region::Region(TensorListFunction function, const std::vector<at::Tensor>& inputs, std::shared_ptr<HostInputs> rest)
    : function_(std::move(function)), conditions_(devices_of(inputs)), rest_(std::move(rest)) {
  for (const at::Tensor& input : inputs) has_input_.push_back(input.defined());
}

std::vector<at::Tensor> Region::put(at::TensorList inputs) {
  std::vector<at::Tensor> saved = inputs.vec();
  for (size_t i = 0; rest_ && i < saved.size(); ++i) {
    if (!HostInputs::moves(saved[i])) continue;
    resting_.push_back({i, rest_->put(saved[i]), saved[i].requires_grad()});
    saved[i] = at::Tensor();
  }
  return saved;
}

std::vector<at::Tensor> Region::take(std::vector<at::Tensor> saved) {
  for (const Resting& each : resting_) saved[each.number] = rest_->take(each.item).requires_grad_(each.requires_grad);
  return saved;
}

std::vector<at::Tensor> Region::run(const std::vector<at::Tensor>& defined) {
  std::vector<at::Tensor> inputs;
  auto next = defined.begin();
  for (const bool has : has_input_) inputs.push_back(has ? *next++ : at::Tensor());
  std::vector<at::Tensor> outputs = function_(inputs);
  has_output_.clear();
  for (const at::Tensor& output : outputs) has_output_.push_back(output.defined());
  std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });
  return outputs;
}

std::vector<at::Tensor> Region::with_undefined(const std::vector<at::Tensor>& defined) const {
  std::vector<at::Tensor> outputs;
  auto next = defined.begin();
  for (const bool has : has_output_) outputs.push_back(has ? *next++ : at::Tensor());
  return outputs;
}

Region::SecondRun Region::run_again(const std::vector<at::Tensor>& saved) {
  SecondRun second;
  for (size_t i = 1; i < saved.size(); ++i) {
    second.inputs.push_back(saved[i].detach().requires_grad_(saved[i].requires_grad()));
  }
  const Replay replay(conditions_);
  const at::AutoGradMode with_gradients(true);
  second.outputs = run(second.inputs);
  return second;
}

std::vector<at::Tensor> with_anchor(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> all{at::zeros({0}).requires_grad_()};
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(all), [](const at::Tensor& t) { return t.defined(); });
  return all;
}

void check_records_no_graph(const RunTwice& what) {
  FSDP_CHECK(!at::GradMode::is_enabled(), "[", what.name, "] got a backward that records a graph (create_graph), ",
             "expected first derivatives only: what is computed again has no second ones. Call ", what.instead,
             " there.");
}

void check_asks_for_all(const RunTwice& what) {
  FSDP_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(), "[", what.name,
             "] got a backward for the gradients of certain tensors (torch::autograd::grad, backward with inputs, ",
             "pipeline::Order::kZeroBubble), expected one for those of all leaves, as what is computed again adds to ",
             "the gradients of what its function captured. Call ", what.instead, " there.");
}

std::vector<at::Tensor> run_backward(const Region::SecondRun& run, const std::vector<at::Tensor>& gradients) {
  FSDP_CHECK(run.outputs.size() == gradients.size(), "[recompute] the second run returned ", run.outputs.size(),
             " tensors, the first ", gradients.size(), ". A region must compute the same both times.");
  torch::autograd::variable_list roots, seeds;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!run.outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(run.outputs[i]);
    seeds.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
  std::vector<at::Tensor> result{at::Tensor()};
  for (const at::Tensor& input : run.inputs) result.push_back(input.grad());
  result.emplace_back();  // of the region
  return result;
}

}  // namespace fsdp
