#include "tests/promise/models/parity_models.h"

#include <stdexcept>

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;

ParityModel sequential() {
  auto module =
      std::make_shared<nn::SequentialImpl>(nn::Linear(5, 7), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({7})),
                                           nn::Linear(7, 11), nn::Tanh(), nn::Linear(11, 3));
  ParityModel model{module, {}, {}};
  for (const size_t i : {0U, 3U, 5U}) model.units.push_back(module->ptr(i));
  model.loss = [module](const torch::Tensor& input) { return module->forward(input).square().mean(); };
  return model;
}

struct Block : nn::Module {
  explicit Block(int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 3 * width));
    down = register_module("down", nn::Linear(nn::LinearOptions(3 * width, width).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::relu(up(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr};
  nn::Linear down{nullptr};
};

// Nested modules; the root reads its own parameters first and last; the embedding is tied to the head.
struct Tied : nn::Module {
  Tied() {
    weight = register_parameter("weight", torch::randn({9, 6}) * 0.3);
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<Block>(6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = torch::matmul(input, weight);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::matmul(norm(x), weight.t());
  }
  torch::Tensor weight;
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
};

ParityModel tied() {
  auto module = std::make_shared<Tied>();
  ParityModel model{module, {}, {}};
  for (const auto& block : *module->blocks) model.units.push_back(block);
  model.loss = [module](const torch::Tensor& input) {
    return torch::cross_entropy_loss(module->forward(input), input.argmax(1));
  };
  return model;
}

// Frozen and trainable parameters in one unit, and a unit that is frozen as a whole.
ParityModel frozen() {
  ParityModel model = sequential();
  model.units[1]->parameters()[1].requires_grad_(false);
  for (torch::Tensor& parameter : model.units[0]->parameters()) parameter.requires_grad_(false);
  return model;
}

// Dims of 1 and 2: at 3 and 4 ranks some shards are empty.
ParityModel tiny() {
  auto module = std::make_shared<nn::SequentialImpl>(nn::Linear(2, 1), nn::Linear(1, 2), nn::Linear(2, 1));
  ParityModel model{module, {module->ptr(0), module->ptr(1)}, {}};
  model.loss = [module](const torch::Tensor& input) { return module->forward(input).square().mean(); };
  return model;
}

// One module run twice with another between, an operator that reads two units, and a parameter that no step uses.
struct Crossing : nn::Module {
  Crossing() {
    a = register_module("a", nn::Linear(4, 4));
    b = register_module("b", nn::Linear(4, 4));
    c = register_module("c", nn::Linear(4, 4));
    unused = register_parameter("unused", torch::randn({5}));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor once = torch::tanh(a(input));
    const torch::Tensor twice = torch::tanh(a(torch::tanh(b(once))));
    const torch::Tensor joined = torch::cat({a->weight, c->weight});
    return torch::matmul(twice, joined.t()).sum(1) + c(once).sum(1);
  }
  nn::Linear a{nullptr};
  nn::Linear b{nullptr};
  nn::Linear c{nullptr};
  torch::Tensor unused;
};

ParityModel crossing() {
  auto module = std::make_shared<Crossing>();
  ParityModel model{module, {module->a.ptr(), module->b.ptr(), module->c.ptr()}, {}};
  model.loss = [module](const torch::Tensor& input) { return module->forward(input).square().mean(); };
  return model;
}

}  // namespace

const std::vector<ParityCase>& parity_cases() {
  static const std::vector<ParityCase> cases = {{"sequential", sequential, 5},
                                                {"tied", tied, 9},
                                                {"frozen", frozen, 5},
                                                {"tiny", tiny, 2},
                                                {"crossing", crossing, 4}};
  return cases;
}

const ParityCase& parity_case(const std::string& name) {
  for (const ParityCase& candidate : parity_cases()) {
    if (candidate.name == name) return candidate;
  }
  throw std::logic_error("no parity model " + name);
}

}  // namespace fsdp::testing
