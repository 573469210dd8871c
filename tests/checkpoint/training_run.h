#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::testing {

// The optimizers that a checkpoint knows. kMuon and kAdafactor have their units cut between tensors, kAdamW8Bit and
// kAdamW24Bit between blocks, whatever a plan says; the latter has bf16 parameters and eight more bits of them, rounded
// at random.
enum class OptimizerKind {
  kAdamW,
  kSGD,
  kMuon,
  kAdafactor,
  kScheduleFree,
  kLion,
  kAdamW8Bit,
  kAdamW24Bit,
  kTorchAdamW,
  kTorchAmsgrad,
  kTorchAdam,
  kTorchSGD,
  kTorchRMSprop,
  kTorchAdagrad
};
inline constexpr OptimizerKind kOptimizerKinds[] = {
    OptimizerKind::kAdamW,        OptimizerKind::kSGD,          OptimizerKind::kMuon,      OptimizerKind::kLion,
    OptimizerKind::kAdafactor,    OptimizerKind::kScheduleFree, OptimizerKind::kAdamW8Bit, OptimizerKind::kAdamW24Bit,
    OptimizerKind::kTorchAdamW,   OptimizerKind::kTorchAmsgrad, OptimizerKind::kTorchAdam, OptimizerKind::kTorchSGD,
    OptimizerKind::kTorchRMSprop, OptimizerKind::kTorchAdagrad};
std::string name(OptimizerKind kind);

// LibTorch's own, or its twin of one of ours.
std::unique_ptr<torch::optim::Optimizer> make_torch_optimizer(OptimizerKind kind,
                                                              const std::vector<torch::Tensor>& parameters);

// One of them over some leaves.
class AnyOptimizer {
 public:
  AnyOptimizer(OptimizerKind kind, const std::vector<torch::Tensor>& leaves);
  void step();
  void scale_lr(double factor);
  checkpoint::OptimizerRef ref();
  FlatOptimizer* flat() { return flat_.get(); }  // null for one of LibTorch's

 private:
  std::unique_ptr<FlatOptimizer> flat_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
};

// A stream of random numbers of a rank's own: state that a program brings itself.
class Noise : public checkpoint::Stateful {
 public:
  explicit Noise(uint64_t seed);
  torch::Tensor mask(at::IntArrayRef sizes);  // zeros and ones
  int64_t drawn() const { return drawn_; }

  void save(checkpoint::StateSink& sink) override;
  void load(checkpoint::StateSource& source) override;
  void loaded() override;

 private:
  at::Generator stream_;
  int64_t drawn_ = 0;
  torch::Tensor read_stream_;
  int64_t read_drawn_ = 0;
};

// Something of everything: a weight with two names ("outlet" first), a frozen unit, a parameter that is never used, a
// unit that joins after some steps, a parameter that is not sharded, one of a single element, running statistics.
struct OddModel : torch::nn::Module {
  static constexpr int64_t kFeatures = 6;
  static constexpr int64_t kWidth = 10;

  OddModel();
  // The mean over rows [n, kFeatures]. `mask`: [n, kWidth], or undefined.
  torch::Tensor loss(const torch::Tensor& rows, const torch::Tensor& mask, bool with_late);

  torch::nn::Linear inlet{nullptr};
  torch::Tensor outlet;
  torch::Tensor spare;
  torch::Tensor plain;
  torch::Tensor tiny;
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear late{nullptr};
  torch::nn::Linear frozen{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

inline constexpr int kLateJoins = 2;  // the first step that uses `late`

// How the model is sharded and trained.
struct TrainingPlan {
  Strategy strategy = Strategy::kOptimGradsParams;
  int replicas = 1;
  int shards = 1;
  bool bf16 = false;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  LayoutOptions layout = {};
  // No noise, statistics that stand still, gradients of `plain` averaged: at any number of ranks the training of the
  // unsharded model. Otherwise ranks differ in whatever may differ.
  bool alike = false;

  int world() const { return replicas * shards; }
  std::string text() const;  // a name for a test
};

// One rank's part of a training. Constructor and step() are COLLECTIVE.
class TrainingRun {
 public:
  TrainingRun(const World& world, const TrainingPlan& plan, uint64_t seed);
  // One optimizer step with the rows of that number. Returns the loss of this rank's rows; of all, where ranks are
  // alike. The learning rate changes in step 1 and never again.
  double step(int number);
  checkpoint::State state();
  // Copies of the leaves and the buffers.
  std::vector<torch::Tensor> tensors();

  OddModel& model() { return *model_; }
  const Unit& root() const { return root_; }
  AnyOptimizer& optimizer() { return optimizer_; }
  Noise& noise() { return noise_; }

 private:
  World world_;
  TrainingPlan plan_;
  std::shared_ptr<OddModel> model_;
  Unit root_;
  AnyOptimizer optimizer_;
  Noise noise_;
};

// What a plan with `alike` is the training of: plain LibTorch on one device.
class UnshardedRun {
 public:
  UnshardedRun(OptimizerKind kind, uint64_t seed);
  double step(int number);
  OddModel& model() { return *model_; }

 private:
  std::shared_ptr<OddModel> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

// What a rank saw of a training.
struct Outcome {
  std::vector<double> losses;
  std::vector<torch::Tensor> tensors;
};
// Losses [first_loss, ...) and all tensors, bit by bit.
void expect_same_bits(const Outcome& actual, const Outcome& expected, size_t first_loss = 0);
void expect_same_bits(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected);

}  // namespace fsdp::testing
