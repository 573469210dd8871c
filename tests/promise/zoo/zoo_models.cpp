// Models made of ordinary layers, as programs have them.
#include <torch/torch.h>

#include "tests/promise/zoo/zoo.h"

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

ZooModel one_root(const std::shared_ptr<nn::Module>& module, const std::vector<std::shared_ptr<nn::Module>>& units) {
  ZooModel model;
  model.roots.push_back({module, {units.begin(), units.end()}});
  return model;
}

template <class Module>
ZooModel square_loss_model(const std::shared_ptr<Module>& module,
                           const std::vector<std::shared_ptr<nn::Module>>& units) {
  ZooModel model = one_root(module, units);
  model.predict = [module](const Tensor& rows) { return module->forward(rows); };
  model.loss = [module](const Tensor& rows, int) { return module->forward(rows).square().mean(); };
  return model;
}

struct Block : nn::Module {
  explicit Block(int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 2 * width));
    down = register_module("down", nn::Linear(2 * width, width));
  }
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr};
  nn::Linear down{nullptr};
};

// ---- transformer: a row is six tokens of four numbers

struct Transformer : nn::Module {
  Transformer() {
    inlet = register_module("inlet", nn::Linear(4, 8));
    const auto options = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0);
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderLayer(options), 3));
    head = register_module("head", nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor x = encoder(inlet(rows.view({-1, 6, 4}).transpose(0, 1)));
    refuse_nan(rows);
    return head(x.mean(0));
  }
  nn::Linear inlet{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};

ZooModel transformer() {
  const auto module = std::make_shared<Transformer>();
  std::vector<std::shared_ptr<nn::Module>> units;
  for (const auto& layer : *module->encoder->layers) units.push_back(layer);
  return square_loss_model(module, units);
}

// ---- convolutions: a row is an image of 2 x 3 x 4, channels last

struct Stage : nn::Module {
  Stage(int64_t in, int64_t out) {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(out));
  }
  Tensor forward(const Tensor& x) { return torch::relu(norm(conv(x))); }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
};

struct Cnn : nn::Module {
  Cnn() {
    stem = register_module("stem", std::make_shared<Stage>(2, 4));
    body = register_module("body", std::make_shared<Stage>(4, 6));
    head = register_module("head", nn::Linear(6 * 12, 3));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor x = stem->forward(rows.view({-1, 2, 3, 4}).contiguous(torch::MemoryFormat::ChannelsLast));
    refuse_nan(rows);
    return head(body->forward(x).flatten(1));
  }
  std::shared_ptr<Stage> stem;
  std::shared_ptr<Stage> body;
  nn::Linear head{nullptr};
};

ZooModel cnn() {
  const auto module = std::make_shared<Cnn>();
  return square_loss_model(module, {module->stem, module->body, module->head.ptr()});
}

// ---- recurrence: two cells take turns, six times; a row is a sequence of six

struct Recurrent : nn::Module {
  Recurrent() {
    below = register_module("below", nn::GRUCell(4, 5));
    above = register_module("above", nn::GRUCell(5, 5));
    head = register_module("head", nn::Linear(5, 3));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor sequence = rows.view({-1, 6, 4});
    Tensor low = torch::zeros({rows.size(0), 5});
    Tensor high = torch::zeros({rows.size(0), 5});
    for (int64_t t = 0; t < 6; ++t) {
      low = below(sequence.select(1, t), low);
      if (t == 3) refuse_nan(rows);
      high = above(low, high);
    }
    return head(high);
  }
  nn::GRUCell below{nullptr};
  nn::GRUCell above{nullptr};
  nn::Linear head{nullptr};
};

ZooModel recurrent() {
  const auto module = std::make_shared<Recurrent>();
  return square_loss_model(module, {module->below.ptr(), module->above.ptr(), module->head.ptr()});
}

// ---- U-Net: what one unit computes is read by another, far later; a row is a field of 4 x 6

struct UNet : nn::Module {
  UNet() {
    down0 = register_module("down0", conv(1, 4));
    down1 = register_module("down1", conv(4, 6));
    middle = register_module("middle", conv(6, 6));
    up1 = register_module("up1", conv(12, 4));
    up0 = register_module("up0", conv(8, 4));
    outlet = register_module("outlet", nn::Conv2d(nn::Conv2dOptions(4, 1, 1)));
  }
  static nn::Conv2d conv(int64_t in, int64_t out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)); }
  static Tensor upsample(const Tensor& x, const Tensor& like) {
    const std::vector<int64_t> size{like.size(2), like.size(3)};
    return nn::functional::interpolate(x, nn::functional::InterpolateFuncOptions().size(size).mode(torch::kNearest));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor fine = torch::tanh(down0(rows.view({-1, 1, 4, 6})));
    const Tensor coarse = torch::tanh(down1(torch::avg_pool2d(fine, 2)));
    Tensor x = torch::tanh(middle(torch::avg_pool2d(coarse, 2)));
    refuse_nan(rows);
    x = torch::tanh(up1(torch::cat({upsample(x, coarse), coarse}, 1)));
    x = torch::tanh(up0(torch::cat({upsample(x, fine), fine}, 1)));
    return outlet(x);
  }
  nn::Conv2d down0{nullptr};
  nn::Conv2d down1{nullptr};
  nn::Conv2d middle{nullptr};
  nn::Conv2d up1{nullptr};
  nn::Conv2d up0{nullptr};
  nn::Conv2d outlet{nullptr};
};

ZooModel unet() {
  const auto module = std::make_shared<UNet>();
  ZooModel model = square_loss_model(module, module->children());
  model.loss = [module](const Tensor& rows, int) {
    return (module->forward(rows) - rows.sin().view({-1, 1, 4, 6})).square().mean();
  };
  return model;
}

// ---- mixture of experts: the router sends each row to one of three

constexpr int64_t kExperts = 3;

struct Experts : nn::Module {
  Experts() {
    router = register_module("router", nn::Linear(nn::LinearOptions(kExperts, kExperts).bias(false)));
    inlet = register_module("inlet", nn::Linear(24, 6));
    experts = register_module("experts", nn::ModuleList());
    for (int64_t i = 0; i < kExperts; ++i) experts->push_back(std::make_shared<Block>(6));
    outlet = register_module("outlet", nn::Linear(6, 3));
    const torch::NoGradGuard no_grad;
    router->weight.copy_(torch::eye(kExperts));
  }
  Tensor forward(const Tensor& rows) {
    const Tensor gates = torch::softmax(router(rows.narrow(1, 0, kExperts)), 1);
    const Tensor choice = gates.argmax(1);
    const Tensor x = inlet(rows);
    Tensor mixed = torch::zeros_like(x);
    for (int64_t i = 0; i < kExperts; ++i) {
      const Tensor chosen = (choice == i).nonzero().flatten();
      if (chosen.numel() == 0) continue;
      const Tensor gate = gates.index_select(0, chosen).narrow(1, i, 1);
      mixed = mixed.index_add(0, chosen,
                              gate * experts->at<Block>(static_cast<size_t>(i)).forward(x.index_select(0, chosen)));
    }
    refuse_nan(rows);
    return outlet(mixed);
  }
  nn::Linear router{nullptr};
  nn::Linear inlet{nullptr};
  nn::ModuleList experts{nullptr};
  nn::Linear outlet{nullptr};
};

ZooModel experts() {
  const auto module = std::make_shared<Experts>();
  std::vector<std::shared_ptr<nn::Module>> units;
  for (const auto& expert : *module->experts) units.push_back(expert);
  return square_loss_model(module, units);
}

// The first rows belong to expert 0, the last to expert 2: no rank of several has rows for all, every expert has some.
Tensor rows_by_expert(const Tensor& noise) {
  const Tensor place = torch::arange(noise.size(0)) * kExperts / noise.size(0);
  const Tensor bias = torch::one_hot(place.to(torch::kLong), noise.size(1)).to(noise.scalar_type());
  return 0.3 * noise + 3 * bias;
}

// ---- tied embedding: head and embedding are units, their weight is one parameter

struct TiedHead : nn::Module {
  explicit TiedHead(const Tensor& table) {
    weight = register_parameter("weight", table);
    bias = register_parameter("bias", torch::zeros({table.size(0)}));
  }
  Tensor forward(const Tensor& x) { return torch::linear(x, weight, bias); }
  Tensor weight;
  Tensor bias;
};

struct Tied : nn::Module {
  Tied() {
    embedding = register_module("embedding", nn::Embedding(11, 6));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<Block>(6));
    head = register_module("head", std::make_shared<TiedHead>(embedding->weight));
  }
  static Tensor tokens(const Tensor& rows) { return (rows.nan_to_num().abs() * 7).to(torch::kLong).remainder(11); }
  Tensor forward(const Tensor& rows) {
    Tensor x = embedding(tokens(rows)).mean(1);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    refuse_nan(rows);
    return head->forward(x);
  }
  nn::Embedding embedding{nullptr};
  nn::ModuleList blocks{nullptr};
  std::shared_ptr<TiedHead> head;
};

ZooModel tied() {
  const auto module = std::make_shared<Tied>();
  ZooModel model = square_loss_model(
      module, {module->embedding.ptr(), module->blocks->ptr(0), module->blocks->ptr(1), module->head});
  model.loss = [module](const Tensor& rows, int) {
    return torch::cross_entropy_loss(module->forward(rows), Tied::tokens(rows).select(1, 0));
  };
  return model;
}

// ---- LoRA: frozen layers with a trainable correction of rank 2; one of them thaws after two steps

struct LoraLinear : nn::Module {
  explicit LoraLinear(int64_t width) {
    base = register_module("base", nn::Linear(width, width));
    down = register_parameter("down", torch::randn({2, width}) * 0.3);
    up = register_parameter("up", torch::randn({width, 2}) * 0.3);
    freeze_base(true);
  }
  void freeze_base(bool frozen) {
    for (Tensor& parameter : base->parameters()) parameter.requires_grad_(!frozen);
  }
  Tensor forward(const Tensor& x) { return base(x) + torch::linear(torch::linear(x, down), up); }
  nn::Linear base{nullptr};
  Tensor down;
  Tensor up;
};

struct Lora : nn::Module {
  Lora() {
    inlet = register_module("inlet", nn::Linear(24, 8));
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(std::make_shared<LoraLinear>(8));
  }
  Tensor forward(const Tensor& rows) {
    Tensor x = inlet(rows);
    for (size_t i = 0; i < layers->size(); ++i) {
      x = torch::tanh(layers->at<LoraLinear>(i).forward(x));
      if (i == 1) refuse_nan(rows);
    }
    return x;
  }
  nn::Linear inlet{nullptr};
  nn::ModuleList layers{nullptr};
};

ZooModel lora() {
  const auto module = std::make_shared<Lora>();
  std::vector<std::shared_ptr<nn::Module>> units;
  for (const auto& layer : *module->layers) units.push_back(layer);
  ZooModel model = square_loss_model(module, units);
  model.before_turn = [module](int step, int) { module->layers->at<LoraLinear>(1).freeze_base(step < 2); };
  return model;
}

// ---- GAN: two roots; a row is a real sample of eight numbers, then noise of six

struct Mlp : nn::Module {
  Mlp(int64_t in, int64_t width, int64_t out) {
    hidden = register_module("hidden", nn::Linear(in, width));
    inner = register_module("inner", nn::Linear(width, width));
    outlet = register_module("outlet", nn::Linear(width, out));
  }
  Tensor forward(const Tensor& x) { return outlet(torch::tanh(inner(torch::tanh(hidden(x))))); }
  std::vector<AnyModule> units() { return {inner.ptr(), outlet.ptr()}; }
  nn::Linear hidden{nullptr};
  nn::Linear inner{nullptr};
  nn::Linear outlet{nullptr};
};

ZooModel gan() {
  const auto generator = std::make_shared<Mlp>(6, 10, 8);
  const auto discriminator = std::make_shared<Mlp>(8, 10, 1);
  ZooModel model;
  model.roots = {{discriminator, discriminator->units()}, {generator, generator->units()}};
  const auto fake = [generator](const Tensor& rows) { return generator->forward(rows.narrow(1, 8, 6)); };
  model.predict = [=](const Tensor& rows) { return discriminator->forward(fake(rows)); };
  model.loss = [=](const Tensor& rows, int turn) {
    const Tensor sample = fake(rows);
    refuse_nan(rows);
    if (turn == 1) return torch::softplus(-discriminator->forward(sample)).mean();
    const Tensor scores = discriminator->forward(torch::cat({rows.narrow(1, 0, 8), sample.detach()}));
    const int64_t count = rows.size(0);
    return torch::softplus(-scores.narrow(0, 0, count)).mean() + torch::softplus(scores.narrow(0, count, count)).mean();
  };
  model.before_turn = [=](int, int turn) {
    for (Tensor& parameter : discriminator->parameters()) parameter.requires_grad_(turn == 0);
  };
  return model;
}

// ---- double precision

struct Precise : nn::Module {
  Precise() {
    inlet = register_module("inlet", nn::Linear(24, 6));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<Block>(6));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& rows) {
    const Tensor x = blocks->at<Block>(0).forward(inlet(rows));
    refuse_nan(rows);
    return blocks->at<Block>(1).forward(x);
  }
  nn::Linear inlet{nullptr};
  nn::ModuleList blocks{nullptr};
};

ZooModel double_precision() {
  const auto module = std::make_shared<Precise>();
  return square_loss_model(module, {module->blocks->ptr(0), module->blocks->ptr(1)});
}

}  // namespace

std::vector<ZooCase> layer_cases() {
  return {
      {.name = "transformer",
       .make = transformer,
       .turns = {{4, 2}},
       .why_kept = "the root (inlet and head) and the last layer",
       .more_worlds = {3, 4}},
      {.name = "cnn", .make = cnn, .turns = {{3, 1}}, .why_kept = "the head", .same_rows = true, .more_worlds = {3}},
      {.name = "recurrent",
       .make = recurrent,
       .turns = {{3, 3}},
       .why_kept = "the head, and both cells: the loop comes back to them, so they stay",
       .units_at_once = 3},
      {.name = "unet", .make = unet, .turns = {{6, 1}}, .why_kept = "the outlet"},
      {.name = "experts",
       .make = experts,
       .turns = {{4, 4}},
       .why_kept = "the root, and all experts: they are gathered with it and stay",
       .units_at_once = kExperts,
       .unused = UnusedUnit::kZeros,
       .make_rows = rows_by_expert,
       .more_worlds = {3}},
      {.name = "tied",
       .make = tied,
       .turns = {{4, 2}},
       .why_kept = "the head's bias, and the embedding, which the head reads too",
       .units_at_once = 3,
       .features = 5,
       .more_worlds = {3, 4}},
      {.name = "lora",
       .make = lora,
       .turns = {{7, 3}},  // a layer has two groups: frozen and trainable parameters
       .why_kept = "the root, and both groups of the last layer",
       .more_worlds = {4}},
      {.name = "gan",
       .make = gan,
       .turns = {{.units = 6, .kept = 5, .wrong_guesses = 1}, {.units = 6, .kept = 3, .wrong_guesses = 1}},
       .why_kept = "root and last layer of the discriminator; turn 0 detaches the generator, so nothing reads its "
                   "three; in turn 1 the gradient of its first layer needs no weight",
       .units_at_once = 3,
       .features = 14},
      {.name = "double_precision",
       .make = double_precision,
       .turns = {{3, 2}},
       .why_kept = "the root (inlet) and the last block",
       .dtype = torch::kDouble}};
}

}  // namespace fsdp::testing
