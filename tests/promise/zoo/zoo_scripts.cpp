// TorchScript: modules whose code is text, and one that was traced.
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include <sstream>
#include <tuple>

#include "tests/promise/zoo/zoo.h"

namespace fsdp::testing {
namespace {

namespace jit = torch::jit;
using torch::Tensor;

jit::Module with_weights(const std::string& name, int64_t in, int64_t out) {
  jit::Module layer(name);
  layer.register_parameter("weight", (torch::randn({out, in}) * 0.4).requires_grad_(), false);
  layer.register_parameter("bias", (torch::randn({out}) * 0.1).requires_grad_(), false);
  return layer;
}

// What a program gets from a file.
jit::Module through_file(const jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return jit::load(file);
}

ZooModel model_of(jit::Module module, const std::vector<std::string>& units) {
  ZooModel model;
  ZooRoot root{module, {}};
  for (const std::string& name : units) root.units.emplace_back(module.attr(name).toModule());
  model.roots.push_back(root);
  model.predict = [module](const Tensor& rows) mutable { return module.forward({rows}).toTensor(); };
  model.loss = [predict = model.predict](const Tensor& rows, int) { return predict(rows).square().mean(); };
  return model;
}

// Two layers in a loop, with a decision that depends on the data.
ZooModel scripted() {
  jit::Module root("Scripted");
  for (const auto& [name, in, out] :
       {std::tuple{"first", 5, 9}, std::tuple{"second", 9, 9}, std::tuple{"third", 9, 7}}) {
    jit::Module layer = with_weights(name, in, out);
    layer.define("def forward(self, x):\n  return torch.tanh(torch.linear(x, self.weight, self.bias))\n");
    root.register_module(name, layer);
  }
  root.define(R"(
def forward(self, x):
  y = self.first.forward(x)
  for i in range(2):
    assert not bool(torch.isnan(x).any()), "rows are not numbers"
    y = self.second.forward(y) + 0.5 * i
    if bool(x.sum() > 1e6):
      y = -y
  return self.third.forward(y)
)");
  return model_of(through_file(root), {"first", "second", "third"});
}

// Recorded from one run: what torch.jit.trace makes. `second` also reads columns that `first` does not.
jit::Stack run_traced(const jit::Module& root, const Tensor& rows) {
  const auto layer = [&](const char* name, const Tensor& x) {
    const jit::Module module = root.attr(name).toModule();
    return torch::tanh(torch::linear(x, module.attr("weight").toTensor(), module.attr("bias").toTensor()));
  };
  const Tensor hidden = layer("first", rows.slice(1, 0, 5));
  return {layer("third", layer("second", torch::cat({hidden, rows.slice(1, 5)}, 1)))};
}

ZooModel traced() {
  jit::Module root("Traced");
  root.register_module("first", with_weights("First", 5, 9));
  root.register_module("second", with_weights("Second", 12, 9));
  root.register_module("third", with_weights("Third", 9, 7));
  const auto run = [&root](const jit::Stack& inputs) { return run_traced(root, inputs.at(0).toTensor()); };
  const auto no_name = [](const Tensor&) { return std::string(); };
  const auto trace = jit::tracer::trace({torch::zeros({2, 8})}, run, no_name, /*strict=*/true, /*force_outplace=*/false,
                                        &root, {"rows"});
  const c10::QualifiedName name(*root.type()->name(), "forward");
  root.type()->addMethod(root._ivalue()->compilation_unit()->create_function(name, trace.first->graph));
  return model_of(through_file(root), {"first", "second", "third"});
}

// The second layer refuses them.
Tensor with_a_column_too_many(const Tensor& rows) { return torch::cat({rows, rows.narrow(1, 0, 1)}, 1); }

}  // namespace

// From the third run on LibTorch's executor transposes all weights first.
std::vector<ZooCase> script_cases() {
  const std::string why =
      "second and third: the executor reads them early and comes back to them; nothing reads first, "
      "whose input needs no gradient";
  return {{.name = "scripted",
           .make = scripted,
           .turns = {{3, 3}},
           .why_kept = why,
           .features = 5,
           .inference_mode = false,
           .more_worlds = {3}},
          {.name = "traced",
           .make = traced,
           .turns = {{3, 3}},
           .why_kept = why,
           .features = 8,
           .inference_mode = false,
           .break_rows = with_a_column_too_many}};
}

}  // namespace fsdp::testing
