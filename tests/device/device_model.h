#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace fsdp::testing {

// A root that reads weights of its own first and last, with `num_layers` layers between. LibTorch's modules are made on
// the CPU and can only move to devices that it knows, so this one makes its weights where they belong. The same values
// on every device.
struct DeviceModel : torch::nn::Module {
  struct Layer : torch::nn::Module {
    Layer(int64_t width, at::Generator generator, at::TensorOptions options) {
      const at::TensorOptions on_cpu = options.device(at::kCPU);
      weight = register_parameter("weight", (torch::randn({width, width}, generator, on_cpu) / 3).to(options.device()));
      bias = register_parameter("bias", torch::randn({width}, generator, on_cpu).to(options.device()));
    }
    torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(torch::linear(x, weight, bias)); }
    torch::Tensor weight, bias;
  };

  DeviceModel(int num_layers, int64_t width, const at::TensorOptions& options) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
    inlet = register_module("inlet", std::make_shared<Layer>(width, generator, options));
    for (int i = 0; i < num_layers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), std::make_shared<Layer>(width, generator, options)));
    }
    outlet = register_module("outlet", std::make_shared<Layer>(width, generator, options));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = inlet->forward(x);
    for (const auto& layer : layers) x = x + layer->forward(x);
    return outlet->forward(x);
  }

  std::shared_ptr<Layer> inlet, outlet;
  std::vector<std::shared_ptr<Layer>> layers;
};

}  // namespace fsdp::testing
