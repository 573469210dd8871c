// Text, likelihoods and parity on a device: what the CPU says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "fsdp/comm/connection.h"
#include "tests/device/fake_device.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/train/model/model_files.h"
#include "train/evaluate/likelihood.h"
#include "train/generate/generation.h"
#include "train/generate/samples.h"
#include "train/model/weights.h"
#include "train/parity/parity_checks.h"

namespace fsdp::train::inference_test {
namespace {

using testing::fake_device;

models::Decoder decoder_on(c10::Device device, const models::DecoderConfig& config) {
  models::Decoder decoder(config, at::TensorOptions(device));
  decoder->reset_parameters(3);
  return decoder;
}

// The likeliest continuations of prompts of many lengths, more than there are rows.
std::vector<std::vector<int64_t>> continue_texts(c10::Device device, const models::DecoderConfig& config) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> texts(7);
  Generator generator(decoder_on(device, config), {.num_rows = 3});
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    GenerationRequest request{.prompt = prompt_of(1 + 11 * number % 40, number), .stop_ids = {}, .sampling = {}};
    request.sampling.temperature = 0;
    request.max_tokens = 6 + 13 * number % 30;
    request.on_token = [&texts, i](int64_t id) {
      texts[i].push_back(id);
      return Verdict::kContinue;
    };
    generator.add(std::move(request));
  }
  while (generator.has_work()) generator.step();
  return texts;
}

TEST(DeviceGeneration, WritesWhatTheCpuWrites) {
  for (const int64_t window : {0, 5}) {
    SCOPED_TRACE(window);
    models::DecoderConfig config = small_config();
    config.sliding_window = window;
    config.sliding_layers = {true, false, true};
    const auto texts = continue_texts(fake_device(), config);
    EXPECT_EQ(texts, continue_texts(at::kCPU, config));
    EXPECT_EQ(texts[6].size(), 6u + 13 * 6 % 30);
  }
}

// Rows of the cache in any order, several tokens at once after others.
TEST(DeviceGeneration, ACacheHasTheLogitsOfTheWholeText) {
  const at::NoGradGuard no_grad;
  models::DecoderConfig config = small_config();
  config.sliding_window = 6;
  config.sliding_layers = {false, true, false};
  models::Decoder decoder = decoder_on(fake_device(), config);
  models::KeyValueCache cache(4);
  const std::vector<int64_t> first = prompt_of(9, 2), second = prompt_of(5, 7), more = prompt_of(3, 50);
  decoder->read_prompts({first}, cache, {3});
  decoder->read_prompts({second}, cache, {0});
  const at::Tensor ids_BT = at::tensor(more, at::kLong).expand({2, 3}).contiguous();
  const at::Tensor logits_BTV = decoder->forward_cached(ids_BT.to(fake_device()), cache, {3, 0}).cpu();
  models::Decoder whole = decoder_on(at::kCPU, config);
  for (int64_t row = 0; row < 2; ++row) {
    std::vector<int64_t> all = row == 0 ? first : second;
    all.insert(all.end(), more.begin(), more.end());
    const at::Tensor expected_TV = whole->forward(at::tensor(all, at::kLong).unsqueeze(0))[0].slice(0, -3);
    EXPECT_LT((logits_BTV[row] - expected_TV).abs().max().item<float>(), 1e-4) << row;
  }
}

std::vector<Sample> samples_on(c10::Device device) {
  SampleConfig config;
  config.every_steps = 1;
  config.prompts = "Once|The ";
  config.max_tokens = 12;
  config.temperature = 0.8;
  ShardOptions options;
  if (!device.is_cpu()) options.device = device;
  const World world = comm::connect_alone();
  ShardedModel model = parallelize(decoder_on(device, small_config()), make_mesh(world, 1), options);
  return SampleWriter(config, 1, tokenizer::Tokenizer::bytes()).write(model);
}

TEST(DeviceGeneration, SamplesOfATrainingAreThoseOfTheCpu) {
  const std::vector<Sample> expected = samples_on(at::kCPU), samples = samples_on(fake_device());
  ASSERT_EQ(samples.size(), 2u);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(to_json(1, samples[i]), to_json(1, expected[i]));
}

TEST(DeviceLikelihood, EqualsThatOfTheCpu) {
  const io::TemporaryFolder folder;
  write_model(folder / "model", small_config(), 5);
  std::vector<ScoredText> texts;
  for (const int64_t length : {2, 30, 17, 8}) {
    const std::vector<int64_t> ids = prompt_of(length, length);
    texts.push_back({{ids.begin(), ids.end()}, 1});
  }
  for (const std::string precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    InferenceModel on_cpu(folder / "model", precision, World{});
    InferenceModel on_device(folder / "model", precision, World{}, fake_device());
    EXPECT_EQ(on_device.decoder()->device(), fake_device());
    const auto expected = log_likelihoods(on_cpu, texts, 32), found = log_likelihoods(on_device, texts, 32);
    ASSERT_EQ(found.size(), texts.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], (precision == "fp32" ? 1e-5 : 2e-2) * std::abs(expected[i])) << i;
  }
}

// The device cannot take over a model of the CPU, which check_parity() begins with; two ranks.
TEST(DeviceParity, WithTransformers) {
  for (const char* name : {"llama3-mini", "mistral-mini", "qwen2-mini", "qwen3-mini", "smollm3-mini"}) {
    SCOPED_TRACE(name);
    ParityOptions options;
    options.model = std::filesystem::path(FSDP_TEST_DATA_DIR) / "models" / name;
    options.expected = options.model / "expected.safetensors";
    options.packed = options.model / "packed.safetensors";
    testing::run_ranks(2, [&](const World& world) {
      models::Decoder decoder(models::read_decoder_config(options.model), at::TensorOptions(fake_device(world.rank)));
      zero_parameters(*decoder);
      ShardedModel model = parallelize(std::move(decoder), make_mesh(world, 1), {});
      load_weights(model, io::ModelFolder::open(options.model));
      for (const ParityReport& report : {check_expected(options, world, model), check_packed(options, world, model)})
        EXPECT_TRUE(report.passed()) << to_table({report});
    });
  }
}

}  // namespace
}  // namespace fsdp::train::inference_test
