#include "tests/checkpoint/training_run.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <stdexcept>

#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr double kFastRate = 0.02;  // of Adam and its kin
constexpr double kRate = 0.01;
constexpr double kEps = 1e-3;  // large: where gradients are small, a rounding must not become a step
constexpr double kDecay = 0.1;
constexpr double kMomentum = 0.9;
constexpr int64_t kRows = 12;  // a multiple of every world here

torch::Tensor rows_of(int number) {
  return torch::randn({kRows, OddModel::kFeatures}, generator(7000 + static_cast<uint64_t>(number)));
}

std::shared_ptr<OddModel> make_odd_model(uint64_t seed, bool alike) {
  auto model = make_seeded(seed, [] { return std::make_shared<OddModel>(); });
  if (alike) model->norm->eval();
  return model;
}

// Statistics stay fp32.
void halve_parameters(OddModel& model) {
  for (torch::Tensor& parameter : model.parameters()) parameter.set_data(parameter.detach().to(torch::kBFloat16));
}

Unit shard(OddModel& model, const World& world, const TrainingPlan& plan) {
  if (plan.optimizer == OptimizerKind::kAdamW24Bit) halve_parameters(model);
  const Mesh mesh(world, {{"replicate", plan.replicas}, {"shard", plan.shards}});
  ShardOptions options;
  options.strategy = plan.strategy;
  options.precision = plan.bf16 ? Precision::bf16() : Precision::fp32();
  options.layout = plan.layout;
  if (plan.optimizer == OptimizerKind::kMuon || plan.optimizer == OptimizerKind::kAdafactor) {
    options.layout = {.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
  }
  if (plan.optimizer == OptimizerKind::kAdamW8Bit || plan.optimizer == OptimizerKind::kAdamW24Bit) {
    options.layout = {.granularity = layout::Granularity::kBlock, .block = kCodeBlock};
  }
  options.ignored_parameters = {model.plain};
  for (const auto& layer : *model.layers) fully_shard(*layer, mesh, options);
  fully_shard(*model.late, mesh, options);
  fully_shard(*model.frozen, mesh, options);
  return fully_shard(model, mesh, options);
}

std::vector<torch::Tensor> distinct(const std::vector<torch::Tensor>& parameters) {
  std::set<const c10::TensorImpl*> seen;
  std::vector<torch::Tensor> list;
  for (const torch::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) list.push_back(parameter);
  }
  return list;
}

}  // namespace

// ---- optimizers

std::string name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "AdamW";
    case OptimizerKind::kSGD:
      return "SGD";
    case OptimizerKind::kMuon:
      return "Muon";
    case OptimizerKind::kAdafactor:
      return "Adafactor";
    case OptimizerKind::kScheduleFree:
      return "ScheduleFree";
    case OptimizerKind::kLion:
      return "Lion";
    case OptimizerKind::kAdamW8Bit:
      return "AdamW8Bit";
    case OptimizerKind::kAdamW24Bit:
      return "AdamW24Bit";
    case OptimizerKind::kTorchAdamW:
      return "TorchAdamW";
    case OptimizerKind::kTorchAmsgrad:
      return "TorchAmsgrad";
    case OptimizerKind::kTorchAdam:
      return "TorchAdam";
    case OptimizerKind::kTorchSGD:
      return "TorchSGD";
    case OptimizerKind::kTorchRMSprop:
      return "TorchRMSprop";
    case OptimizerKind::kTorchAdagrad:
      return "TorchAdagrad";
  }
  throw std::logic_error("optimizer");
}

std::unique_ptr<optim::Optimizer> make_torch_optimizer(OptimizerKind kind,
                                                       const std::vector<torch::Tensor>& parameters) {
  const auto adamw = optim::AdamWOptions(kFastRate).eps(kEps).weight_decay(kDecay);
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kTorchAdamW:
      return std::make_unique<optim::AdamW>(parameters, adamw);
    case OptimizerKind::kTorchAmsgrad:
      return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(adamw).amsgrad(true));
    case OptimizerKind::kTorchAdam:
      return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(kFastRate).eps(kEps));
    case OptimizerKind::kSGD:
    case OptimizerKind::kTorchSGD:
      return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(kRate).momentum(kMomentum));
    case OptimizerKind::kTorchRMSprop:
      return std::make_unique<optim::RMSprop>(
          parameters, optim::RMSpropOptions(kFastRate / 40).eps(kEps).momentum(kMomentum).centered(true));
    case OptimizerKind::kTorchAdagrad:
      return std::make_unique<optim::Adagrad>(parameters, optim::AdagradOptions(kRate).lr_decay(0.01));
    case OptimizerKind::kMuon:
    case OptimizerKind::kAdafactor:
    case OptimizerKind::kScheduleFree:
    case OptimizerKind::kLion:
    case OptimizerKind::kAdamW8Bit:
    case OptimizerKind::kAdamW24Bit:
      break;  // LibTorch has none
  }
  throw std::logic_error("optimizer");
}

AnyOptimizer::AnyOptimizer(OptimizerKind kind, const std::vector<torch::Tensor>& leaves) {
  if (kind == OptimizerKind::kAdamW) {
    const AdamWOptions options{.lr = kFastRate, .eps = kEps, .weight_decay = kDecay};
    flat_ = std::make_unique<AdamW>(leaves, options);
  } else if (kind == OptimizerKind::kSGD) {
    flat_ = std::make_unique<SGD>(leaves, SGDOptions{.lr = kRate, .momentum = kMomentum});
  } else if (kind == OptimizerKind::kAdamW8Bit || kind == OptimizerKind::kAdamW24Bit) {
    AdamWOptions options{.lr = kFastRate, .eps = kEps, .weight_decay = kDecay};
    if (kind == OptimizerKind::kAdamW24Bit) options.digits = WeightDigits::kEightBitsAtRandom;
    flat_ = std::make_unique<LowBitAdamW>(leaves, options);
  } else if (kind == OptimizerKind::kLion) {
    flat_ = std::make_unique<Lion>(leaves, LionOptions{.lr = kRate / 10, .weight_decay = kDecay});
  } else if (kind == OptimizerKind::kScheduleFree) {
    const ScheduleFreeAdamWOptions options{.lr = kFastRate, .eps = kEps, .weight_decay = kDecay, .warmup_steps = 3};
    flat_ = std::make_unique<ScheduleFreeAdamW>(leaves, options);
  } else if (kind == OptimizerKind::kAdafactor) {
    flat_ = std::make_unique<Adafactor>(leaves, AdafactorOptions{.lr = kRate, .weight_decay = kDecay});
  } else if (kind == OptimizerKind::kMuon) {
    MuonGroups groups{{}, {{{}, kDecay}}};
    for (const torch::Tensor& leaf : leaves) {
      (logical_sizes(leaf).size() == 2 ? groups.matrices : groups.others[0].parameters).push_back(leaf);
    }
    flat_ = std::make_unique<Muon>(groups, MuonOptions{.lr = kRate, .dtype = torch::kFloat},
                                   AdamWOptions{.lr = kFastRate, .eps = kEps});
  } else {
    torch_ = make_torch_optimizer(kind, leaves);
  }
}

void AnyOptimizer::step() {
  if (flat_) flat_->step();
  if (torch_) torch_->step();
}

void AnyOptimizer::scale_lr(double factor) {
  if (flat_) flat_->set_lr(0, flat_->lr(0) * factor);
  if (!torch_) return;
  auto& options = torch_->param_groups()[0].options();
  options.set_lr(options.get_lr() * factor);
}

checkpoint::OptimizerRef AnyOptimizer::ref() {
  if (flat_) return *flat_;
  return *torch_;
}

// ---- noise

Noise::Noise(uint64_t seed) : stream_(generator(seed)) {}

torch::Tensor Noise::mask(at::IntArrayRef sizes) {
  ++drawn_;
  return torch::empty(sizes).bernoulli_(0.75, stream_);
}

void Noise::save(checkpoint::StateSink& sink) {
  sink.replica("stream", stream_.get_state());
  sink.value("drawn", std::to_string(drawn_));
}

void Noise::load(checkpoint::StateSource& source) {
  read_stream_ = stream_.get_state();
  source.replica("stream", read_stream_);
  read_drawn_ = std::stoll(source.value("drawn").value());
}

void Noise::loaded() {
  stream_.set_state(read_stream_);
  drawn_ = read_drawn_;
}

// ---- the model

OddModel::OddModel() {
  inlet = register_module("inlet", nn::Linear(nn::LinearOptions(kFeatures, kWidth).bias(false)));
  outlet = register_parameter("outlet", inlet->weight);
  spare = register_parameter("spare", torch::randn({7, 3}));
  plain = register_parameter("plain", torch::randn({2, kWidth / 2}));
  tiny = register_parameter("tiny", torch::randn({1}));
  layers = register_module("layers", nn::ModuleList());
  for (int i = 0; i < 2; ++i) layers->push_back(std::make_shared<BlockImpl>(kWidth));
  late = register_module("late", nn::Linear(kWidth, kWidth));
  frozen = register_module("frozen", nn::Linear(kWidth, kWidth));
  frozen->weight.requires_grad_(false);
  frozen->bias.requires_grad_(false);
  norm = register_module("norm", nn::BatchNorm1d(nn::BatchNorm1dOptions(kWidth).affine(false)));
}

torch::Tensor OddModel::loss(const torch::Tensor& rows, const torch::Tensor& mask, bool with_late) {
  const auto dtype = outlet.scalar_type();
  torch::Tensor x = inlet(rows.to(dtype));
  if (mask.defined()) x = x * mask.to(dtype);
  for (const auto& layer : *layers) x = layer->as<BlockImpl>()->forward(x);
  if (with_late) x = x + late(torch::tanh(x));
  x = norm(frozen(x).to(torch::kFloat)).to(dtype) * plain.flatten().to(dtype);
  return (torch::matmul(x, outlet) * tiny - rows.to(dtype)).to(torch::kFloat).square().mean();
}

// ---- runs

std::string TrainingPlan::text() const {
  return c10::str(fsdp::name(strategy), "_", replicas, "x", shards, bf16 ? "_bf16_" : "_fp32_", name(optimizer));
}

TrainingRun::TrainingRun(const World& world, const TrainingPlan& plan, uint64_t seed)
    : world_(world),
      plan_(plan),
      model_(make_odd_model(seed, plan.alike)),
      root_(shard(*model_, world, plan)),
      optimizer_(plan.optimizer, parameters(*model_)),
      noise_(plan.alike ? seed : seed + 1 + static_cast<uint64_t>(world.rank)) {}

double TrainingRun::step(int number) {
  if (number == 1) optimizer_.scale_lr(0.5);
  const int64_t share = kRows / world_.size;
  const torch::Tensor rows = rows_of(number).narrow(0, world_.rank * share, share);
  const torch::Tensor mask = plan_.alike ? torch::Tensor() : noise_.mask({share, OddModel::kWidth});
  const torch::Tensor loss = model_->loss(rows, mask, number >= kLateJoins);
  loss.backward();
  if (plan_.alike) model_->plain.mutable_grad() = sum_over_ranks(world_, model_->plain.grad()) / world_.size;
  optimizer_.step();
  zero_grad(*model_);
  if (!plan_.alike) return loss.item<double>();
  return sum_over_ranks(world_, loss.detach()).item<double>() / world_.size;
}

checkpoint::State TrainingRun::state() {
  return {.model = *model_, .optimizer = optimizer_.ref(), .more_optimizers = {}, .others = {{"noise", &noise_}}};
}

std::vector<torch::Tensor> TrainingRun::tensors() {
  std::vector<torch::Tensor> list;
  for (const torch::Tensor& leaf : parameters(*model_)) list.push_back(leaf.detach().clone());
  for (const torch::Tensor& buffer : model_->buffers()) list.push_back(buffer.clone());
  return list;
}

UnshardedRun::UnshardedRun(OptimizerKind kind, uint64_t seed)
    : model_(make_odd_model(seed, true)), optimizer_(make_torch_optimizer(kind, distinct(model_->parameters()))) {}

double UnshardedRun::step(int number) {
  auto& options = optimizer_->param_groups()[0].options();
  if (number == 1) options.set_lr(options.get_lr() * 0.5);
  const torch::Tensor loss = model_->loss(rows_of(number), torch::Tensor(), number >= kLateJoins);
  loss.backward();
  optimizer_->step();
  optimizer_->zero_grad();
  return loss.item<double>();
}

void expect_same_bits(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "tensor " << i;
}

void expect_same_bits(const Outcome& actual, const Outcome& expected, size_t first_loss) {
  ASSERT_EQ(actual.losses.size() + first_loss, expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_TRUE(std::isfinite(actual.losses[i]));
    EXPECT_EQ(std::bit_cast<uint64_t>(actual.losses[i]), std::bit_cast<uint64_t>(expected.losses[first_loss + i]))
        << "loss " << i << ": " << actual.losses[i] << ", expected " << expected.losses[first_loss + i];
  }
  expect_same_bits(actual.tensors, expected.tensors);
}

}  // namespace fsdp::testing
