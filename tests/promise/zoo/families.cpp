#include "tests/promise/zoo/families.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

using Modules = std::vector<std::shared_ptr<nn::Module>>;

ZooModel family_model(const std::shared_ptr<nn::Module>& module, const Modules& units,
                      const std::function<Tensor(const Tensor& rows)>& loss) {
  ZooModel model;
  model.roots.push_back({module, {units.begin(), units.end()}});
  model.loss = [loss](const Tensor& rows, int) { return loss(rows); };
  return model;
}

nn::Conv2d conv3(int64_t in, int64_t out, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).stride(stride));
}

nn::GroupNorm group_norm(int64_t channels) { return nn::GroupNorm(nn::GroupNormOptions(2, channels)); }

// ---- classifier: residual convolutions over images of 3 x 8 x 8; the label is where a channel's mean is largest

struct Residual : nn::Module {
  Residual(int64_t in, int64_t out, int64_t stride) {
    first = register_module("first", conv3(in, out, stride));
    norm = register_module("norm", group_norm(out));
    second = register_module("second", conv3(out, out));
    if (in != out || stride != 1)
      shortcut = register_module("shortcut", nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = second(torch::relu(norm(first(x))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut(x)));
  }
  nn::Conv2d first{nullptr};
  nn::GroupNorm norm{nullptr};
  nn::Conv2d second{nullptr};
  nn::Conv2d shortcut{nullptr};
};

struct Classifier : nn::Module {
  Classifier() {
    stages = register_module("stages", nn::ModuleList());
    stages->push_back(std::make_shared<Residual>(3, 4, 1));
    stages->push_back(std::make_shared<Residual>(4, 6, 2));
    head = register_module("head", nn::Linear(6, 3));
  }
  Tensor loss(const Tensor& rows) {
    const Tensor images = rows.view({-1, 3, 8, 8});
    Tensor x = images;
    for (const auto& stage : *stages) x = stage->as<Residual>()->forward(x);
    return torch::cross_entropy_loss(head(x.mean({2, 3})), images.mean({2, 3}).argmax(1));
  }
  nn::ModuleList stages{nullptr};
  nn::Linear head{nullptr};
};

ZooModel classifier() {
  const auto module = std::make_shared<Classifier>();
  return family_model(module, {module->stages->ptr(0), module->stages->ptr(1)},
                      [module](const Tensor& rows) { return module->loss(rows); });
}

// ---- GAN with hinge losses; the critic's outputs must not drift

struct Perceptron : nn::Module {
  Perceptron(int64_t in, int64_t width, int64_t out) {
    inlet = register_module("inlet", nn::Linear(in, width));
    middle = register_module("middle", nn::Linear(width, width));
    outlet = register_module("outlet", nn::Linear(width, out));
  }
  Tensor forward(const Tensor& x) { return outlet(torch::silu(middle(torch::silu(inlet(x))))); }
  std::vector<AnyModule> units() { return {middle.ptr(), outlet.ptr()}; }
  nn::Linear inlet{nullptr};
  nn::Linear middle{nullptr};
  nn::Linear outlet{nullptr};
};

ZooModel adversaries() {
  const auto generator = std::make_shared<Perceptron>(5, 9, 7);
  const auto critic = std::make_shared<Perceptron>(7, 8, 1);
  ZooModel model;
  model.roots = {{critic, critic->units()}, {generator, generator->units()}};
  model.loss = [=](const Tensor& rows, int turn) {
    const Tensor real = rows.narrow(1, 0, 7);
    const Tensor fake = generator->forward(rows.narrow(1, 7, 5));
    if (turn == 1) return -critic->forward(fake).mean();
    const Tensor for_real = critic->forward(real);
    const Tensor for_fake = critic->forward(fake.detach());
    const Tensor drift = 0.01 * (for_real.square().mean() + for_fake.square().mean());
    return torch::relu(1 - for_real).mean() + torch::relu(1 + for_fake).mean() + drift;
  };
  return model;
}

// ---- VAE: the noise of a sample is a part of its row

struct Autoencoder : nn::Module {
  Autoencoder() {
    encoder = register_module("encoder", std::make_shared<Perceptron>(12, 10, 8));
    decoder = register_module("decoder", std::make_shared<Perceptron>(4, 10, 12));
  }
  Tensor loss(const Tensor& rows) {
    const Tensor x = rows.narrow(1, 0, 12);
    const auto parts = encoder->forward(x).chunk(2, 1);
    const Tensor mean = parts[0], log_variance = parts[1].clamp(-4, 4);
    const Tensor z = mean + torch::exp(0.5 * log_variance) * rows.narrow(1, 12, 4);
    const Tensor distance = (decoder->forward(z) - x).square().sum(1);
    const Tensor divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1);
    return (distance + divergence).mean() / 12;
  }
  std::shared_ptr<Perceptron> encoder;
  std::shared_ptr<Perceptron> decoder;
};

ZooModel autoencoder() {
  const auto module = std::make_shared<Autoencoder>();
  return family_model(module, {module->encoder, module->decoder},
                      [module](const Tensor& rows) { return module->loss(rows); });
}

// ---- flow: affine couplings with masks as buffers, scales of a channel each, and their determinants

struct Coupling : nn::Module {
  explicit Coupling(int64_t parity) {
    network = register_module("network", std::make_shared<Perceptron>(6, 8, 12));
    log_scale = register_parameter("log_scale", torch::zeros({6}));
    offset = register_parameter("offset", torch::zeros({6}));
    mask = register_buffer("mask", (torch::arange(6) % 2 == parity).to(torch::kFloat));
  }
  // What comes out, and the logarithm of the determinant of each row.
  std::pair<Tensor, Tensor> forward(const Tensor& input) {
    const Tensor x = (input + offset) * log_scale.exp();
    const Tensor kept = x * mask;
    const auto parts = network->forward(kept).chunk(2, 1);
    const Tensor scale = torch::tanh(parts[0]) * (1 - mask);
    const Tensor y = kept + (1 - mask) * (x * scale.exp() + parts[1]);
    return {y, scale.sum(1) + log_scale.sum()};
  }
  std::shared_ptr<Perceptron> network;
  Tensor log_scale;
  Tensor offset;
  Tensor mask;
};

struct Flow : nn::Module {
  Flow() {
    couplings = register_module("couplings", nn::ModuleList());
    for (int64_t i = 0; i < 3; ++i) couplings->push_back(std::make_shared<Coupling>(i % 2));
    temperature = register_parameter("temperature", torch::tensor(1.2F));
  }
  Tensor loss(const Tensor& rows) {
    Tensor x = rows.sinh();
    Tensor log_determinant = torch::zeros({rows.size(0)}, rows.options());
    for (const auto& coupling : *couplings) {
      const auto [y, added] = coupling->as<Coupling>()->forward(x);
      x = y;
      log_determinant = log_determinant + added;
    }
    const Tensor spread = temperature.square() + 0.1;
    const Tensor density = -0.5 * (x.square().sum(1) / spread + 6 * torch::log(2 * std::numbers::pi * spread));
    return -(density + log_determinant).mean() / 6;
  }
  nn::ModuleList couplings{nullptr};
  Tensor temperature;
};

ZooModel flow() {
  const auto module = std::make_shared<Flow>();
  Modules units;
  for (const auto& coupling : *module->couplings) units.push_back(coupling);
  return family_model(module, units, [module](const Tensor& rows) { return module->loss(rows); });
}

// ---- detector: two maps of features share one head; each image's box is matched to cells of both maps

struct Detector : nn::Module {
  static constexpr int64_t kClasses = 3;  // the last is background

  Detector() {
    stem = register_module("stem", std::make_shared<Residual>(1, 4, 1));
    deeper = register_module("deeper", std::make_shared<Residual>(4, 4, 2));
    classes = register_module("classes", conv3(4, kClasses));
    boxes = register_module("boxes", conv3(4, 4));
  }
  Tensor loss(const Tensor& rows) {
    const Tensor images = rows.narrow(1, 0, 64).view({-1, 1, 8, 8});
    const Tensor box = torch::sigmoid(rows.narrow(1, 64, 4));  // center, size
    const Tensor kind = (rows.select(1, 68) > 0).to(torch::kLong);
    const Tensor fine = stem->forward(images);
    return map_loss(fine, box, kind) + map_loss(deeper->forward(fine), box, kind);
  }
  // Cells within the box belong to it, and so does the one with the nearest center.
  Tensor map_loss(const Tensor& map, const Tensor& box, const Tensor& kind) {
    const int64_t side = map.size(2), cells = side * side;
    const Tensor scores = classes(map).flatten(2).transpose(1, 2);  // [rows, cells, classes]
    const Tensor places = boxes(map).flatten(2).transpose(1, 2);    // [rows, cells, 4]
    const Tensor line = (torch::arange(side).to(box.scalar_type()) + 0.5) / side;
    const Tensor centers = torch::stack({line.repeat({side}), line.repeat_interleave(side)}, 1);  // [cells, 2]
    const Tensor apart = (centers.unsqueeze(0) - box.narrow(1, 0, 2).unsqueeze(1)).abs();
    const Tensor nearest = torch::one_hot(apart.sum(2).argmin(1), cells).to(torch::kBool);
    const Tensor mine = (apart < 0.5 * box.narrow(1, 2, 2).unsqueeze(1)).all(2).logical_or(nearest);
    const Tensor labels = torch::where(mine, kind.unsqueeze(1), torch::full_like(kind, kClasses - 1).unsqueeze(1));
    const Tensor class_loss =
        torch::cross_entropy_loss(scores.transpose(1, 2), labels, {}, at::Reduction::None).mean(1);
    const Tensor distance =
        torch::smooth_l1_loss(places, box.unsqueeze(1).expand_as(places), at::Reduction::None).sum(2);
    return (class_loss + (distance * mine).sum(1) / mine.sum(1)).mean();
  }
  std::shared_ptr<Residual> stem;
  std::shared_ptr<Residual> deeper;
  nn::Conv2d classes{nullptr};
  nn::Conv2d boxes{nullptr};
};

ZooModel detector() {
  const auto module = std::make_shared<Detector>();
  return family_model(module, {module->stem, module->deeper, module->classes.ptr()},
                      [module](const Tensor& rows) { return module->loss(rows); });
}

// ---- segmenter: skips across units, and a loss over pixels with Dice's coefficient of each image

struct Segmenter : nn::Module {
  Segmenter() {
    fine = register_module("fine", std::make_shared<Residual>(1, 4, 1));
    coarse = register_module("coarse", std::make_shared<Residual>(4, 6, 2));
    merge = register_module("merge", conv3(10, 4));
    outlet = register_module("outlet", nn::Conv2d(nn::Conv2dOptions(4, 1, 1)));
  }
  Tensor loss(const Tensor& rows) {
    const Tensor images = rows.view({-1, 1, 6, 6});
    const Tensor wanted = (torch::avg_pool2d(images, 3, 1, 1) > 0).to(images.scalar_type());
    const Tensor near = fine->forward(images);
    const Tensor far = coarse->forward(near).repeat_interleave(2, 2).repeat_interleave(2, 3);
    const Tensor logits = outlet(torch::relu(merge(torch::cat({near, far}, 1))));
    const Tensor probability = torch::sigmoid(logits).flatten(1), truth = wanted.flatten(1);
    const Tensor dice = 1 - (2 * (probability * truth).sum(1) + 1) / (probability.sum(1) + truth.sum(1) + 1);
    return torch::binary_cross_entropy_with_logits(logits, wanted) + dice.mean();
  }
  std::shared_ptr<Residual> fine;
  std::shared_ptr<Residual> coarse;
  nn::Conv2d merge{nullptr};
  nn::Conv2d outlet{nullptr};
};

ZooModel segmenter() {
  const auto module = std::make_shared<Segmenter>();
  return family_model(module, {module->fine, module->coarse, module->merge.ptr()},
                      [module](const Tensor& rows) { return module->loss(rows); });
}

// ---- diffusion: tokens of noised data, modulated by the time, with attention; it predicts the noise

struct TimedBlock : nn::Module {
  explicit TimedBlock(int64_t width) {
    modulation = register_module("modulation", nn::Linear(width, 2 * width));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width}).elementwise_affine(false)));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    down = register_module("down", nn::Linear(width, width));
    gate = register_parameter("gate", torch::full({width}, 0.5F));
  }
  Tensor forward(const Tensor& x_BTH, const Tensor& time_BH) {
    const auto parts = modulation(torch::silu(time_BH)).unsqueeze(1).chunk(2, 2);
    const auto heads = qkv(norm(x_BTH) * (1 + parts[0]) + parts[1]).chunk(3, 2);
    const Tensor weights = torch::softmax(heads[0].matmul(heads[1].transpose(1, 2)) / std::sqrt(x_BTH.size(2)), 2);
    return x_BTH + gate * down(weights.matmul(heads[2]));
  }
  nn::Linear modulation{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear qkv{nullptr};
  nn::Linear down{nullptr};
  Tensor gate;
};

struct Diffusion : nn::Module {
  static constexpr int64_t kTokens = 4, kWidth = 6;

  Diffusion() {
    inlet = register_module("inlet", nn::Linear(3, kWidth));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<TimedBlock>(kWidth));
    outlet = register_module("outlet", nn::Linear(kWidth, 3));
  }
  Tensor loss(const Tensor& rows) {
    const Tensor data = torch::tanh(rows.narrow(1, 0, 12)), noise = rows.narrow(1, 12, 12);
    const Tensor time = torch::sigmoid(rows.narrow(1, 24, 1));
    const Tensor noised =
        torch::cos(time * std::numbers::pi / 2) * data + torch::sin(time * std::numbers::pi / 2) * noise;
    const Tensor waves = time * (torch::arange(1, kWidth + 1).to(rows.scalar_type()) * 0.7);
    Tensor x = inlet(noised.view({-1, kTokens, 3}));
    for (const auto& block : *blocks) x = block->as<TimedBlock>()->forward(x, torch::sin(waves));
    return (outlet(x).flatten(1) - noise).square().mean();
  }
  nn::Linear inlet{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::Linear outlet{nullptr};
};

ZooModel diffusion() {
  const auto module = std::make_shared<Diffusion>();
  return family_model(module, {module->blocks->ptr(0), module->blocks->ptr(1)},
                      [module](const Tensor& rows) { return module->loss(rows); });
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> list{
      {"classifier", classifier, 192}, {"gan", adversaries, 12},     {"vae", autoencoder, 16},     {"flow", flow, 6},
      {"detector", detector, 69},      {"segmenter", segmenter, 36}, {"diffusion", diffusion, 25},
  };
  return list;
}

}  // namespace fsdp::testing
