// One rank of a model that is built where it does not fit: a 1.0e9-parameter Llama in fp32, constructed without memory
// and sharded unit by unit in the order of construction. Each rank prints the most memory it used for that beside its
// program, and the bound: its shard, two blocks and 64 MiB. Exit code 1 where that is exceeded.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "models/decoder.h"

namespace fsdp::benchmarks::build_memory_program {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSlackBytes = 64 * kMiB;

models::DecoderConfig llama_1b(int64_t layers) {
  models::DecoderConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 2048;
  config.intermediate_size = 5632;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.rms_norm_eps = 1e-5;
  return config;
}

models::Decoder make_model(const models::DecoderConfig& config) {
  models::Decoder model(config);
  model->reset_parameters(/*seed=*/1);
  return model;
}

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : module.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes;
}

// Embedding, blocks and head are units of their own, in this order; the root keeps a norm.
class BuildMemory {
 public:
  BuildMemory(const World& world, models::DecoderConfig config, bool plain)
      : world_(world), config_(std::move(config)), before_bytes_(process_memory().resident_bytes) {
    reset_peak_memory();
    model_ = plain ? make_model(config_) : deferred([&] { return make_model(config_); });
    const Mesh mesh = Mesh::shard(world_);
    const auto modules = model_->named_modules();
    fully_shard(*modules["model.embed_tokens"], mesh);
    for (const auto& layer : *model_->layers()) {
      block_bytes_.push_back(bytes_of(*layer));
      fully_shard(*layer, mesh);
    }
    fully_shard(*modules["lm_head"], mesh);
    root_ = fully_shard(*model_, mesh);
  }

  // Whether the peak is within the bound.
  bool report() {
    const int64_t peak = process_memory().peak_bytes - before_bytes_;
    const int64_t shard = root_->resting_bytes().main_weight;
    std::sort(block_bytes_.rbegin(), block_bytes_.rend());
    int64_t blocks = 0;
    for (size_t i = 0; i < std::min<size_t>(2, block_bytes_.size()); ++i) blocks += block_bytes_[i];
    const int64_t bound = shard + blocks + kSlackBytes;
    std::printf("rank %d of %d: %.3fe9 parameters, peak %ld MiB, bound %ld MiB = shard %ld + two blocks %ld + 64: %s\n",
                world_.rank, world_.size, static_cast<double>(models::num_parameters(config_)) / 1e9, peak / kMiB,
                bound / kMiB, shard / kMiB, blocks / kMiB, peak <= bound ? "within" : "above");
    return peak <= bound;
  }

 private:
  World world_;
  models::DecoderConfig config_;
  int64_t before_bytes_;
  std::vector<int64_t> block_bytes_;
  models::Decoder model_{nullptr};
  std::optional<Unit> root_;
};

struct Options {
  int64_t layers = 20;
  bool plain = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Peak memory of building and sharding a model of 1.0e9 parameters");
  app.add_option("--layers", options.layers, "blocks of the model")->check(CLI::PositiveNumber);
  app.add_flag("--plain", options.plain, "construct all of it on every rank before sharding, for comparison");
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const World world = init();
  at::set_num_threads(1);
  BuildMemory build(world, llama_1b(options.layers), options.plain);
  const bool within = build.report();
  barrier(world, "every rank has reported");
  return within ? 0 : 1;
}

}  // namespace fsdp::benchmarks::build_memory_program
