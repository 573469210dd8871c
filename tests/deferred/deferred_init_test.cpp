// A model whose construction was put off has, bit for bit, the values of an ordinary constructor after the same seed,
// and no memory before they are wanted. One rank and one thread: LibTorch's default generator is the process's.
#include "fsdp/deferred/deferred_init.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

namespace fsdp::deferred_init_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr uint64_t kSeed = 3;

template <class Make>
auto make_plain(Make make, uint64_t seed = kSeed) {
  torch::manual_seed(seed);
  return make();
}

template <class Make>
auto make_deferred(Make make, uint64_t seed = kSeed) {
  torch::manual_seed(seed);
  return deferred(make);
}

std::vector<Tensor> tensors_of(const nn::Module& module) {
  std::vector<Tensor> tensors = module.parameters();
  for (const Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

bool same_bits(const Tensor& one, const Tensor& other) {
  if (one.device() != other.device() || one.dtype() != other.dtype() || one.sizes() != other.sizes()) return false;
  if (one.strides() != other.strides()) return false;
  const Tensor left = one.detach().contiguous(), right = other.detach().contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

template <class Items>
void expect_same_items(const Items& items, const Items& expected) {
  ASSERT_EQ(items.size(), expected.size());
  for (const auto& item : expected) {
    const Tensor& tensor = items[item.key()];
    ASSERT_FALSE(is_deferred(tensor)) << item.key();
    EXPECT_TRUE(same_bits(tensor, item.value())) << item.key();
    EXPECT_EQ(tensor.requires_grad(), item.value().requires_grad()) << item.key();
    EXPECT_TRUE(tensor.is_leaf()) << item.key();
  }
}

void expect_same(const nn::Module& module, const nn::Module& expected) {
  expect_same_items(module.named_parameters(), expected.named_parameters());
  expect_same_items(module.named_buffers(), expected.named_buffers());
}

// The next random number, which tells how many were used.
Tensor next_random() { return torch::rand({4}); }

// ---- models

// Its constructor computes: tables, views written in place, conversions, one tensor from another.
struct Computing : nn::Module {
  Computing() {
    scaled = register_parameter("scaled", torch::randn({8, 4}) * 0.1);
    const Tensor frequencies = 1.0 / torch::pow(10000.0, torch::arange(0, 8, 2).to(torch::kFloat) / 8);
    const Tensor angles = torch::outer(torch::arange(16, torch::kFloat), frequencies);
    register_buffer("cosines", torch::cat({angles, angles}, 1).cos());
    sines = torch::cat({angles, angles}, 1).sin();
    register_buffer("mask", torch::full({5, 5}, -INFINITY).triu(1));
    register_parameter("bf16", torch::randn({3, 3}, torch::kBFloat16));
    register_buffer("converted", torch::rand({3}).to(torch::kDouble));
    register_buffer("like", torch::randn_like(scaled.detach()));
    register_buffer("same_options", torch::rand({2, 2}, scaled.options().requires_grad(false)));
    register_buffer("copy", scaled.detach().clone());
    register_buffer("coin", torch::bernoulli(torch::full({6}, 0.5)));
    register_buffer("order", torch::randperm(10));
    register_buffer("mixed", torch::tensor({1.0F, 2.0F}, torch::device(torch::kCPU)) * torch::rand({2}));
    write_through_views(register_parameter("patched", torch::randn({7, 3})));
  }

  static void write_through_views(const Tensor& weight) {
    const torch::NoGradGuard no_grad;
    weight[2].fill_(3);
    weight.narrow(0, 4, 2).mul_(-2);
    weight.data().slice(0, 6).uniform_();
    weight.view({21}).index_put_({torch::tensor({0, 1})}, torch::tensor({5.0F, 6.0F}));
    weight.index({torch::indexing::Slice(), 1}).copy_(torch::linspace(0, 1, 7));
  }

  Tensor scaled, sines;
};

struct Initialised : nn::Module {
  Initialised() {
    nn::init::orthogonal_(register_parameter("wide", torch::empty({6, 10})), 1.3);
    nn::init::orthogonal_(register_parameter("tall", torch::empty({10, 6})));
    nn::init::kaiming_normal_(register_parameter("kaiming", torch::empty({5, 7})));
    nn::init::kaiming_uniform_(register_parameter("fan_out", torch::empty({5, 7})), 0.1, torch::kFanOut);
    nn::init::xavier_uniform_(register_parameter("xavier", torch::empty({5, 7, 3, 3})), 2.0);
    nn::init::xavier_normal_(register_parameter("xavier_normal", torch::empty({5, 7})));
    nn::init::eye_(register_parameter("eye", torch::empty({5, 5})));
    nn::init::dirac_(register_parameter("dirac", torch::empty({4, 4, 3})));
    nn::init::constant_(register_parameter("constant", torch::empty({2})), 0.5);
  }
};

struct Tied : nn::Module {
  Tied() : embedding(11, 6), middle(6, 6) {
    register_module("embedding", embedding);
    register_module("middle", middle);
    head = register_parameter("head", embedding->weight);
  }
  nn::Embedding embedding;
  nn::Linear middle;
  Tensor head;
};

struct Zoo : nn::Module {
  Zoo() {
    add("linear", nn::Linear(7, 5));
    add("conv", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
    add("transposed", nn::ConvTranspose1d(nn::ConvTranspose1dOptions(3, 4, 3)));
    add("embedding", nn::Embedding(nn::EmbeddingOptions(9, 4).padding_idx(1)));
    add("layer_norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    add("batch_norm", nn::BatchNorm2d(6));
    add("lstm", nn::LSTM(nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true)));
    add("gru", nn::GRU(5, 6));
    add("attention", nn::MultiheadAttention(8, 2));
    add("attention_kv", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).kdim(4).vdim(6).add_bias_kv(true)));
    const auto layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0);
    add("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)));
    add("computing", nn::ModuleHolder<Computing>());
    add("initialised", nn::ModuleHolder<Initialised>());
    add("tied", nn::ModuleHolder<Tied>());
    add("last", nn::Bilinear(3, 4, 5));
  }

  template <class Holder>
  void add(const std::string& name, const Holder& module) {
    register_module(name, module.ptr());
  }
  template <class Impl>
  Impl& get(const std::string& name) {
    return dynamic_cast<Impl&>(*named_children()[name]);
  }
};

std::shared_ptr<Zoo> make_zoo() { return std::make_shared<Zoo>(); }

nn::Sequential make_three_layers() {
  nn::Sequential layers;
  for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(256, 256));
  return layers;
}
constexpr int64_t kLayerBytes = (256 * 256 + 256) * 4;

// ---- values

TEST(DeferredInit, ModuleByModuleValuesAreThoseOfAnOrdinaryConstructor) {
  const auto plain = make_plain(make_zoo);
  const Tensor next = next_random();
  const auto zoo = make_deferred(make_zoo);
  for (const auto& child : zoo->named_children()) {
    SCOPED_TRACE(child.key());
    materialize(tensors_of(*child.value()));
    expect_same(*child.value(), *plain->named_children()[child.key()]);
  }
  EXPECT_TRUE(same_bits(next_random(), next));
}

TEST(DeferredInit, AllAtOnceToo) {
  const auto plain = make_plain(make_zoo);
  const Tensor next = next_random();
  const auto listed = make_deferred(make_zoo);
  materialize(tensors_of(*listed));
  expect_same(*listed, *plain);
  EXPECT_TRUE(same_bits(next_random(), next));
  const auto all = make_deferred(make_zoo);
  materialize_all();
  expect_same(*all, *plain);
  EXPECT_TRUE(same_bits(next_random(), next));
  EXPECT_TRUE(same_bits(all->get<Computing>("computing").sines, plain->get<Computing>("computing").sines));
}

TEST(DeferredInit, InAnotherOrderTheNumbersAreStillDrawnInTheOrderOfConstruction) {
  nn::Sequential plain = make_plain(make_three_layers);
  nn::Sequential layers = make_deferred(make_three_layers);
  for (const size_t i : {2, 0, 1}) {
    materialize(tensors_of(*layers[i]));
    expect_same(*layers[i], *plain[i]);
  }
}

TEST(DeferredInit, TensorsStayTheSameObjects) {
  const auto zoo = make_deferred(make_zoo);
  const Tied& tied = zoo->get<Tied>("tied");
  const Tensor before = tied.embedding->weight;
  materialize_all();
  EXPECT_TRUE(before.is_same(tied.embedding->weight));
  EXPECT_TRUE(before.is_same(tied.head));
  EXPECT_NE(before.const_data_ptr(), nullptr);
}

TEST(DeferredInit, MaterializedModulesTrain) {
  const auto plain = make_plain(make_zoo), zoo = make_deferred(make_zoo);
  materialize(tensors_of(*zoo));
  const Tensor rows = torch::linspace(-1, 1, 48).view({3, 2, 8});
  for (Zoo* model : {plain.get(), zoo.get()}) {
    model->get<nn::TransformerEncoderImpl>("encoder").forward(rows).square().sum().backward();
    std::get<0>(model->get<nn::LSTMImpl>("lstm").forward(rows.narrow(2, 0, 5))).square().sum().backward();
  }
  int64_t with_gradient = 0;
  for (const auto& item : plain->named_parameters()) {
    if (!item.value().grad().defined()) continue;
    ++with_gradient;
    ASSERT_TRUE(zoo->named_parameters()[item.key()].grad().defined()) << item.key();
    EXPECT_TRUE(same_bits(zoo->named_parameters()[item.key()].grad(), item.value().grad())) << item.key();
  }
  EXPECT_EQ(with_gradient, 3 * 12 + 2 * 8);
}

TEST(DeferredInit, DtypesAndTheDefaultDtypeAreTheConstructors) {
  const auto make = [] {
    struct Model : nn::Module {
      Model() {
        register_parameter("by_default", torch::rand({3}));
        register_parameter("half", torch::ones({3}, torch::kHalf));
        register_buffer("whole", torch::arange(4));
        register_buffer("steps", torch::arange(0, 1, 0.25));
        register_buffer("flags", torch::zeros({2}, torch::kBool));
      }
    };
    return std::make_shared<Model>();
  };
  const caffe2::TypeMeta before = torch::get_default_dtype();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto plain = make_plain(make), model = make_deferred(make);
  torch::set_default_dtype(before);
  EXPECT_EQ(model->named_parameters()["by_default"].scalar_type(), torch::kDouble);
  materialize_all();
  expect_same(*model, *plain);
}

TEST(DeferredInit, AGeneratorOfTheConstructorsOwnIsUsed) {
  const auto make = [] {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(9);
    struct Model : nn::Module {
      explicit Model(at::Generator generator) {
        register_parameter("first", at::normal(0.0, 1.0, {4, 4}, generator));
        register_parameter("second", at::empty({5}).uniform_(0, 1, generator));
      }
    };
    return std::make_shared<Model>(std::move(generator));
  };
  const auto plain = make_plain(make), model = make_deferred(make);
  materialize_all();
  expect_same(*model, *plain);
}

// ---- memory

// Bytes of tensors that exist, and at most existed.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : inner_(c10::GetAllocator(c10::kCPU)) { c10::SetAllocator(c10::kCPU, this, kPriority); }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, inner_, kPriority); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  c10::DataPtr allocate(size_t bytes) override {
    live += static_cast<int64_t>(bytes);
    peak = std::max(peak, live);
    auto* block = new Block{inner_->allocate(bytes), static_cast<int64_t>(bytes)};
    return {block->data.get(), block, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  static inline int64_t live = 0, peak = 0;

 private:
  static constexpr uint8_t kPriority = 200;
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
  };
  static void release(void* block) {
    live -= static_cast<Block*>(block)->bytes;
    delete static_cast<Block*>(block);
  }

  c10::Allocator* inner_;
};

TEST(DeferredInitMemory, TensorsHaveNoneUntilTheyAreWanted) {
  const CountingAllocator allocator;
  const int64_t before = CountingAllocator::peak = CountingAllocator::live;
  nn::Sequential layers = make_deferred(make_three_layers);
  EXPECT_LT(CountingAllocator::peak - before, 1024);
  for (const Tensor& parameter : layers->parameters()) {
    EXPECT_TRUE(is_deferred(parameter));
    EXPECT_TRUE(parameter.requires_grad());
  }
  for (size_t i = 0; i < 3; ++i) {
    CountingAllocator::peak = CountingAllocator::live;
    materialize(tensors_of(*layers[i]));
    EXPECT_LT(std::abs(CountingAllocator::live - before - kLayerBytes), 1024);
    EXPECT_LT(CountingAllocator::peak - before, kLayerBytes + 1024);  // not two layers
    for (size_t later = i + 1; later < 3; ++later) {
      for (const Tensor& parameter : layers[later]->parameters()) EXPECT_TRUE(is_deferred(parameter));
    }
    for (Tensor parameter : layers[i]->parameters()) parameter.set_data(torch::empty({0}));  // as sharding does
    EXPECT_LT(CountingAllocator::live - before, 1024);
  }
}

TEST(DeferredInitMemory, WhatWasNotWantedStaysAsLongAsItsTensor) {
  const CountingAllocator allocator;
  nn::Sequential plain = make_plain(make_three_layers);
  const int64_t before = CountingAllocator::live;
  nn::Sequential layers = make_deferred(make_three_layers);
  materialize(tensors_of(*layers[2]));
  EXPECT_LT(std::abs(CountingAllocator::live - before - 3 * kLayerBytes), 1024);
  EXPECT_TRUE(is_deferred(layers->parameters()[0]));
  materialize({layers->parameters()[0]});
  EXPECT_TRUE(same_bits(layers->parameters()[0], plain->parameters()[0]));
  layers = nullptr;
  EXPECT_EQ(CountingAllocator::live, before);
}

TEST(DeferredInitMemory, AllocationsWaitForTheCallThatFillsThem) {
  const auto make = [] {
    std::vector<Tensor> weights;
    for (int i = 0; i < 3; ++i) weights.push_back(torch::empty({64, 64}));
    for (Tensor& weight : weights) weight.normal_();
    return weights;
  };
  const std::vector<Tensor> plain = make_plain(make);
  const CountingAllocator allocator;
  const int64_t before = CountingAllocator::live;
  const std::vector<Tensor> weights = make_deferred(make);
  for (size_t i = 0; i < 3; ++i) {
    materialize({weights[i]});
    EXPECT_TRUE(same_bits(weights[i], plain[i]));
    EXPECT_EQ(CountingAllocator::live - before, static_cast<int64_t>(i + 1) * 64 * 64 * 4);
  }
}

TEST(DeferredInitMemory, TemporariesOfTheConstructorAreGone) {
  const CountingAllocator allocator;
  const int64_t before = CountingAllocator::live;
  const Tensor kept = make_deferred([] { return (torch::ones({64, 64}) * 2 + torch::rand({64, 64})).sum(0); });
  materialize({kept});
  EXPECT_EQ(CountingAllocator::live - before, 64 * 4);
}

// ---- aliases

TEST(DeferredInit, AViewSharesTheMemoryOfItsBase) {
  const auto linear = make_deferred([] { return nn::Linear(2, 2); });
  const Tensor view = linear->weight.detach().view({4});
  EXPECT_TRUE(is_deferred(view));
  materialize({linear->weight});
  ASSERT_FALSE(is_deferred(view));
  EXPECT_EQ(view.const_data_ptr(), linear->weight.const_data_ptr());
  const torch::NoGradGuard no_grad;
  view.fill_(2);
  EXPECT_EQ(linear->weight.sum().item<float>(), 8);
}

TEST(DeferredInit, LaterModulesReadWhatTheConstructorLeft) {
  struct Model : nn::Module {
    Model() : first(3, 3), second(3, 3) {
      register_module("first", first);
      register_module("second", second);
      const torch::NoGradGuard no_grad;
      second->weight.copy_(first->weight.t());
    }
    nn::Linear first, second;
  };
  const auto make = [] { return std::make_shared<Model>(); };
  const auto plain = make_plain(make), model = make_deferred(make);
  materialize(tensors_of(*model->first));
  EXPECT_TRUE(is_deferred(model->second->weight));
  {
    const torch::NoGradGuard no_grad;
    model->first->weight.zero_();  // a step of training, or the memory given away
  }
  materialize(tensors_of(*model->second));
  expect_same(*model->second, *plain->second);
  EXPECT_EQ(model->first->weight.abs().sum().item<float>(), 0);
}

// ---- tensors that are not deferred

TEST(DeferredInit, TensorsOnAnExplicitDeviceAreOrdinary) {
  const auto [here, copy, listed] = make_deferred([] {
    const Tensor here = torch::full({2}, 7.0, torch::device(torch::kCPU));
    return std::make_tuple(here, here * 2 + torch::ones_like(here), torch::tensor({1, 2}, torch::kCPU));
  });
  for (const Tensor& tensor : {here, copy, listed}) EXPECT_FALSE(is_deferred(tensor));
  EXPECT_EQ(copy.sum().item<float>(), 30);
  EXPECT_FALSE(is_deferred(Tensor()));
  EXPECT_FALSE(is_deferred(torch::ones({2})));
  EXPECT_FALSE(is_deferred(torch::ones({2}, torch::kMeta)));
}

TEST(DeferredInit, SetDataWithMemoryEndsIt) {
  const auto linear = make_deferred([] { return nn::Linear(2, 2); });
  linear->bias.set_data(torch::ones({2}));
  EXPECT_FALSE(is_deferred(linear->bias));
  materialize_all();
  EXPECT_TRUE(same_bits(linear->bias, torch::ones({2})));
}

TEST(DeferredInit, MaterializingOrdinaryTensorsDoesNothing) {
  const Tensor ordinary = torch::rand({3}), copy = ordinary.clone();
  materialize({ordinary, Tensor()});
  materialize({});
  materialize_all();
  EXPECT_TRUE(same_bits(ordinary, copy));
}

// ---- after the scope

TEST(DeferredInit, ChangesAfterConstructionAreWrittenDownToo) {
  const auto change = [](nn::Sequential& layers) {
    layers->to(torch::kBFloat16);
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : layers->parameters()) parameter.normal_(0, 0.02);
  };
  nn::Sequential plain = make_plain(make_three_layers);
  change(plain);
  nn::Sequential layers = make_deferred(make_three_layers);
  change(layers);
  for (const Tensor& parameter : layers->parameters()) EXPECT_TRUE(is_deferred(parameter));
  materialize(tensors_of(*layers[0]));
  EXPECT_FALSE(is_deferred(layers->parameters()[0]));
  EXPECT_TRUE(is_deferred(layers->parameters()[4]));
  materialize(tensors_of(*layers));
  expect_same(*layers, *plain);
}

TEST(DeferredInit, AForwardBringsToLifeWhatItUses) {
  const auto make = [] { return nn::Sequential(nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)); };
  nn::Sequential plain = make_plain(make), layers = make_deferred(make);
  const Tensor rows = torch::linspace(-1, 1, 6).view({2, 3});
  const Tensor result = layers->forward(rows), expected = plain->forward(rows);
  EXPECT_TRUE(same_bits(result, expected));
  result.sum().backward();
  expected.sum().backward();
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(layers->parameters()[i].grad(), plain->parameters()[i].grad()));
}

TEST(DeferredInit, AFailedConstructorLeavesNothingBehind) {
  const auto fail = [] {
    const nn::Linear linear(3, 3);
    throw std::runtime_error("from the constructor");
    return linear;
  };
  EXPECT_THROW(make_deferred(fail), std::runtime_error);
  EXPECT_EQ(torch::ones({2}).sum().item<float>(), 2);
  EXPECT_THROW(make_deferred([] { return torch::ones({2}).view({3}); }), c10::Error);
  const auto make = [] { return nn::Linear(3, 3); };
  const nn::Linear plain = make_plain(make), linear = make_deferred(make);
  materialize_all();
  expect_same(*linear, *plain);
}

}  // namespace
}  // namespace fsdp::deferred_init_test
