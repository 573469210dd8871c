// Models that read their weights in ways of their own: in functions with a backward of their own, of two units at once,
// in a loss that differentiates, through a raw pointer, twice because of recompute.
#include <torch/torch.h>

#include "fsdp/recompute/recompute.h"
#include "fsdp/unit/forward.h"
#include "tests/promise/zoo/zoo.h"

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 6;

// inlet, then a row of units, then an outlet; inlet and outlet are the root's.
template <class Layer>
struct Stack : nn::Module {
  explicit Stack(int num_layers) {
    inlet = register_module("inlet", nn::Linear(24, kWidth));
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < num_layers; ++i) layers->push_back(std::make_shared<Layer>());
    outlet = register_module("outlet", nn::Linear(kWidth, 2));
  }
  Tensor forward(const Tensor& rows) {
    Tensor x = torch::tanh(inlet(rows));
    for (size_t i = 0; i < layers->size(); ++i) {
      if (i == 1) refuse_nan(rows);
      x = layers->template at<Layer>(i).forward(x);
    }
    return outlet(x);
  }
  std::vector<AnyModule> units() const { return {layers->begin(), layers->end()}; }
  nn::Linear inlet{nullptr};
  nn::ModuleList layers{nullptr};
  nn::Linear outlet{nullptr};
};

template <class Layer>
ZooModel stack_of(int num_layers) {
  const auto module = std::make_shared<Stack<Layer>>(num_layers);
  ZooModel model;
  model.roots.push_back({module, module->units()});
  model.predict = [module](const Tensor& rows) { return module->forward(rows); };
  model.loss = [module](const Tensor& rows, int) { return module->forward(rows).square().mean(); };
  return model;
}

struct Dense : nn::Module {
  Dense() { linear = register_module("linear", nn::Linear(kWidth, kWidth)); }
  Tensor forward(const Tensor& x) { return torch::tanh(linear(x)); }
  nn::Linear linear{nullptr};
};

// ---- a function with a backward of its own: x * sigmoid(slope * x)

struct Swish : torch::autograd::Function<Swish> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& slope) {
    context->save_for_backward({x, slope});
    return x * torch::sigmoid(slope * x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor gate = torch::sigmoid(saved[1] * saved[0]);
    const Tensor slope_of_gate = gate * (1 - gate);
    const Tensor to_x = gate + saved[0] * saved[1] * slope_of_gate;
    return {gradients[0] * to_x, (gradients[0] * saved[0].square() * slope_of_gate).sum(0)};
  }
};

struct Gated : nn::Module {
  Gated() {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
    slope = register_parameter("slope", torch::ones({kWidth}));
  }
  Tensor forward(const Tensor& x) { return Swish::apply(linear(x), slope); }
  nn::Linear linear{nullptr};
  Tensor slope;
};

// ---- operators that read weights of two units at once

struct Joint : nn::Module {
  Joint() {
    inlet = register_module("inlet", nn::Linear(24, kWidth));
    a = register_module("a", nn::Linear(kWidth, kWidth));
    b = register_module("b", nn::Linear(kWidth, kWidth));
    c = register_module("c", nn::Linear(kWidth, kWidth));
  }
  Tensor forward(const Tensor& rows) {
    Tensor x = inlet(rows);
    x = torch::tanh(torch::addmm(a->bias, x, b->weight.t()));
    refuse_nan(rows);
    x = torch::tanh(torch::linear(x, torch::cat({a->weight, b->weight}), torch::cat({a->bias, b->bias})));
    return c(x.narrow(1, 0, kWidth) + x.narrow(1, kWidth, kWidth));
  }
  nn::Linear inlet{nullptr};
  nn::Linear a{nullptr};
  nn::Linear b{nullptr};
  nn::Linear c{nullptr};
};

ZooModel joint() {
  const auto module = std::make_shared<Joint>();
  ZooModel model;
  model.roots.push_back({module, {module->a.ptr(), module->b.ptr(), module->c.ptr()}});
  model.predict = [module](const Tensor& rows) { return module->forward(rows); };
  model.loss = [module](const Tensor& rows, int) { return module->forward(rows).square().mean(); };
  return model;
}

// ---- a loss that differentiates: the norm of each row's gradient shall be 1

ZooModel gradient_penalty() {
  ZooModel model = stack_of<Dense>(3);
  model.loss = [predict = model.predict](const Tensor& rows, int) {
    const Tensor input = rows.detach().clone().requires_grad_();
    const Tensor output = predict(input);
    const Tensor slope = torch::autograd::grad({output.sum()}, {input}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    return output.square().mean() + (slope.norm(2, 1) - 1).square().mean();
  };
  return model;
}

// ---- a kernel of the program's own, which no operator stands for: it says what it reads with fsdp::touch()

struct Scale : torch::autograd::Function<Scale> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& factor) {
    context->save_for_backward({x, factor});
    return times(x, factor);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    touch({saved[1]});
    return {times(gradients[0], saved[1]), (gradients[0] * saved[0]).sum(0)};
  }
  static Tensor times(const Tensor& x, const Tensor& factor) {
    const Tensor rows = x.contiguous();
    Tensor out = torch::empty_like(rows);
    const float* in = rows.const_data_ptr<float>();
    const float* by = factor.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    const int64_t width = factor.size(0);
    for (int64_t i = 0; i < rows.numel(); ++i) to[i] = in[i] * by[i % width];
    return out;
  }
};

struct Scaled : nn::Module {
  Scaled() {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
    factor = register_parameter("factor", 1 + 0.1 * torch::randn({kWidth}));
  }
  // The kernel comes first: nothing else has gathered the unit for it. Outside of its function, where gradients are on.
  Tensor forward(const Tensor& x) {
    touch({factor});
    return torch::tanh(linear(Scale::apply(x, factor)));
  }
  nn::Linear linear{nullptr};
  Tensor factor;
};

// ---- recompute: each layer runs again in the backward

struct Recomputed : nn::Module {
  Recomputed() { dense = register_module("dense", std::make_shared<Dense>()); }
  Tensor forward(const Tensor& x) {
    const auto layer = dense;
    return recompute([layer](const Tensor& input) { return layer->forward(input); }, x);
  }
  std::shared_ptr<Dense> dense;
};

}  // namespace

std::vector<ZooCase> unusual_cases() {
  const std::string ends = "the root (inlet and outlet) and the last layer";
  return {
      {.name = "custom_function",
       .make = [] { return stack_of<Gated>(3); },
       .turns = {{4, 2}},
       .why_kept = ends,
       .more_worlds = {3}},
      {.name = "joint",
       .make = joint,
       .turns = {{4, 3}},
       .why_kept = "the root; c, the last; nothing reads a, because the backward of cat and of a sum needs no weight",
       .units_at_once = 3},
      {.name = "gradient_penalty",
       .make = gradient_penalty,
       .turns = {{.units = 4, .kept = 2, .by_inner_backward = 4, .wrong_guesses = 3}},
       .why_kept = ends,
       .units_at_once = 3},
      {.name = "raw_kernel", .make = [] { return stack_of<Scaled>(3); }, .turns = {{4, 2}}, .why_kept = ends},
      {.name = "recomputed",
       .make = [] { return stack_of<Recomputed>(3); },
       .turns = {{4, 2}},
       .why_kept = ends,
       .more_worlds = {3}}};
}

}  // namespace fsdp::testing
