// Generation with a model of SmolLM2-135M's shape and random weights: time to the first token, time of each further
// one, and what reading the weights once takes. With --write, makes the model folder instead. The last line is JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "io/safetensors/safetensors.h"
#include "kernels/base/parallel_for.h"
#include "kernels/raw/flat/sum_squares.h"
#include "train/generate/generation.h"
#include "train/model/inference_model.h"

namespace fsdp::benchmarks::generation_program {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  std::string write;  // dtype of the folder to be made
  std::string precision = "fp32";
  int64_t rows = 1, prompt_tokens = 32, new_tokens = 64;
  int threads = 2, rounds = 3;
};

models::DecoderConfig smollm2_135m() {
  models::DecoderConfig config;
  config.model_type = "llama";
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100000;
  config.tie_word_embeddings = true;
  config.max_position_embeddings = 8192;
  config.initializer_range = 0.06;  // unlike logits: both programs shall take the same tokens
  return config;
}

void write_model(const fs::path& folder, bool is_bf16) {
  models::Decoder model(smollm2_135m(), at::TensorOptions().dtype(is_bf16 ? at::kBFloat16 : at::kFloat));
  model->reset_parameters(1);
  std::vector<io::TensorDeclaration> tensors;
  for (const auto& entry : model->named_parameters())
    tensors.push_back({entry.key(), is_bf16 ? io::DType::BF16 : io::DType::F32, entry.value().sizes().vec()});
  fs::create_directories(folder);
  io::SafetensorsWriter writer(folder / "model.safetensors", tensors, {{"format", "pt"}});
  for (const auto& entry : model->named_parameters())
    writer.write(entry.key(), 0, entry.value().numel(), entry.value().const_data_ptr());
  writer.commit();
  nlohmann::json config = models::to_hugging_face(model->config());
  config["dtype"] = is_bf16 ? "bfloat16" : "float32";
  std::ofstream(folder / "config.json") << config.dump(2) << "\n";
}

// Least milliseconds that all threads need to read what one forward reads.
double read_ms(models::Decoder& model) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) weights.push_back(parameter.view(-1).view(at::kFloat));
  double least = 1e30;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> sums(static_cast<size_t>(at::get_num_threads()) * 16);
    Stopwatch watch;
    kernels::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread)
        for (const at::Tensor& weight : weights) {
          const int64_t first = weight.numel() * thread / at::get_num_threads(),
                        last = weight.numel() * (thread + 1) / at::get_num_threads();
          sums[static_cast<size_t>(thread) * 16] +=
              kernels::raw::sum_squares(weight.const_data_ptr<float>() + first, last - first);
        }
    });
    least = std::min(least, watch.lap());
    if (sums[0] == 1e30) std::puts("");  // the sums are needed
  }
  return least;
}

struct Round {
  double first_ms = 0, total_ms = 0;
  std::vector<std::vector<int64_t>> ids;
};

Round generate(models::Decoder& model, const Options& options) {
  train::Generator generator(model, {.num_rows = options.rows});
  Round round;
  round.ids.resize(static_cast<size_t>(options.rows));
  for (size_t row = 0; row < round.ids.size(); ++row) {
    train::GenerationRequest request{.prompt = {}, .stop_ids = {}, .sampling = {.temperature = 0}};
    request.max_tokens = options.new_tokens;
    for (int64_t i = 0; i < options.prompt_tokens; ++i)
      request.prompt.push_back((static_cast<int64_t>(row) * 7919 + i * 104729 + 11) % 49152);
    request.on_token = [&round, row](int64_t id) {
      round.ids[row].push_back(id);
      return train::Verdict::kContinue;
    };
    generator.add(std::move(request));
  }
  Stopwatch watch;
  const auto waits = [](const std::vector<int64_t>& ids) { return ids.empty(); };
  while (std::any_of(round.ids.begin(), round.ids.end(), waits)) generator.step();
  round.first_ms = watch.lap();
  while (generator.has_work()) generator.step();
  round.total_ms = round.first_ms + watch.lap();
  return round;
}

nlohmann::json measure(const Options& options) {
  at::set_num_threads(options.threads);
  const at::NoGradGuard no_grad;
  train::InferenceModel model(options.model, options.precision, init());
  nlohmann::json result{{"first_ms", nlohmann::json::array()}, {"token_ms", nlohmann::json::array()}};
  Options brief = options;
  brief.new_tokens = 4;
  generate(model.decoder(), brief);
  for (int i = 0; i < options.rounds; ++i) {
    const Round round = generate(model.decoder(), options);
    result["first_ms"].push_back(round.first_ms);
    result["token_ms"].push_back((round.total_ms - round.first_ms) / static_cast<double>(options.new_tokens - 1));
    result["total_ms"].push_back(round.total_ms);
    result["ids"] = round.ids;
  }
  int64_t bytes = 0;
  for (const at::Tensor& parameter : model.decoder()->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  result["weight_bytes"] = bytes;
  result["read_ms"] = read_ms(model.decoder());
  return result;
}

}  // namespace

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Generation, timed.");
  app.add_option("--model", options.model, "model folder")->required();
  app.add_option("--write", options.write, "make the folder, with weights in fp32 or bf16");
  app.add_option("--precision", options.precision);
  app.add_option("--rows", options.rows);
  app.add_option("--prompt-tokens", options.prompt_tokens);
  app.add_option("--new-tokens", options.new_tokens)->check(CLI::Range(2, 1 << 20));
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds);
  parse_or_exit(app, argc, argv);
  if (!options.write.empty())
    write_model(options.model, options.write == "bf16");
  else
    std::printf("%s\n", measure(options).dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::generation_program
