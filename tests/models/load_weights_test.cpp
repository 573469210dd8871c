#include "models/load_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "io/safetensors/safetensors.h"
#include "models/decoder.h"

namespace fsdp::models::load_weights_test {
namespace {

struct Stored {
  std::string name;
  at::Tensor value;
};

io::DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return io::DType::BF16;
    case at::kHalf:
      return io::DType::F16;
    case at::kInt:
      return io::DType::I32;
    default:
      return io::DType::F32;
  }
}

class LoadWeights : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        std::filesystem::temp_directory_path() / ("fsdp_load_weights_" + std::to_string(getpid()) + "_" + info->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  io::ModelFolder write(const std::vector<Stored>& tensors) {
    std::vector<io::TensorDeclaration> declarations;
    for (const Stored& entry : tensors)
      declarations.push_back({entry.name, dtype_of(entry.value), entry.value.sizes().vec()});
    io::SafetensorsWriter writer(folder_ / "model.safetensors", declarations);
    for (const Stored& entry : tensors) {
      const at::Tensor value = entry.value.contiguous();
      writer.write(entry.name, 0, value.numel(), value.const_data_ptr());
    }
    writer.commit();
    return io::ModelFolder::open(folder_);
  }

  std::filesystem::path folder_;
};

DecoderConfig tiny_config() {
  DecoderConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 6;
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.tie_word_embeddings = true;
  return config;
}

std::vector<Stored> values_of(Decoder& model, at::ScalarType dtype) {
  std::vector<Stored> tensors;
  for (const auto& parameter : model->named_parameters())
    tensors.push_back({parameter.key(), parameter.value().detach().to(dtype)});
  return tensors;
}

TEST_F(LoadWeights, ConvertsAndToleratesATiedHead) {
  for (const auto stored : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto wanted : {at::kFloat, at::kBFloat16}) {
      Decoder source(tiny_config()), target(tiny_config(), at::TensorOptions().dtype(wanted));
      source->reset_parameters(3);
      auto tensors = values_of(source, stored);
      tensors.push_back({"lm_head.weight", tensors[0].value});
      tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({2})});
      load_weights(*target, target->config(), write(tensors));
      for (const auto& parameter : target->named_parameters()) {
        const auto entry = std::find_if(tensors.begin(), tensors.end(),
                                        [&](const Stored& candidate) { return candidate.name == parameter.key(); });
        EXPECT_TRUE(at::equal(parameter.value(), entry->value.to(wanted))) << parameter.key();
      }
    }
  }
}

TEST_F(LoadWeights, OneTableListsAllMismatchesAndNothingIsWritten) {
  Decoder source(tiny_config()), target(tiny_config());
  source->reset_parameters(3);
  target->reset_parameters(4);
  const at::Tensor before = target->parameters()[0].clone();
  auto tensors = values_of(source, at::kFloat);
  tensors[1].value = at::ones({2, 3});
  tensors[2].value = tensors[2].value.to(at::kInt);
  tensors[3].name = "model.stranger.weight";
  const io::ModelFolder folder = write(tensors);
  try {
    load_weights(*target, target->config(), folder);
    FAIL() << "no error";
  } catch (const io::Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), io::ErrorKind::kModel);
    for (const char* text : {"q_proj.weight", "[2, 3]", "[8, 8]", "k_proj.weight", "I32", "v_proj.weight",
                             "model.stranger.weight", "4 tensor"})
      EXPECT_NE(message.find(text), std::string::npos) << text << " in " << message;
  }
  EXPECT_TRUE(at::equal(target->parameters()[0], before));
}

}  // namespace
}  // namespace fsdp::models::load_weights_test
