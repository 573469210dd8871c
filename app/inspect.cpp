#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "app/tensor_table.h"
#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/base/error.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/hub/model_folder.h"
#include "io/tokens/token_shards.h"
#include "io/weights/open_weights.h"
#include "models/decoder.h"
#include "models/load_weights.h"
#include "train/base/format.h"
#include "train/base/terminal_text.h"
#include "train/model/model_choice.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

void inspect_data(const fs::path& folder, bool verify) {
  const io::DatasetManifest manifest = io::read_dataset_manifest(folder);
  std::printf("data set %s: tokenizer %s, %s tokens in the vocabulary\n", folder.c_str(),
              train::for_terminal(manifest.tokenizer).c_str(), train::with_thousands(manifest.vocab_size).c_str());
  for (const auto& [split, shards] : manifest.splits) {
    const io::TokenDataset data = io::TokenDataset::open(folder, split);
    if (verify) {
      data.verify_hashes();
    }
    std::printf("  %-10s %s tokens, %s documents, %zu shard(s)%s\n", train::for_terminal(split).c_str(),
                train::with_thousands(data.num_tokens()).c_str(), train::with_thousands(data.num_documents()).c_str(),
                shards.size(), verify ? ", hashes match" : "");
  }
}

std::string window_text(const models::DecoderConfig& config) {
  if (config.sliding_window == 0) return "";
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) layers += config.window(layer) > 0 ? 1 : 0;
  return ", window " + train::with_thousands(config.sliding_window) +
         (layers < config.num_hidden_layers ? " in " + std::to_string(layers) + " layers" : "");
}

std::string experts_text(const models::DecoderConfig& config) {
  const models::ExpertsConfig& experts = config.experts;
  if (experts.count == 0) return "";
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) layers += config.has_experts(layer) ? 1 : 0;
  return ", experts " + std::to_string(experts.count) + " of " + train::with_thousands(experts.inner_size) + ", " +
         std::to_string(experts.per_token) + " for a token" +
         (experts.shared_inner_size > 0 ? " beside " + train::with_thousands(experts.shared_inner_size) : "") +
         (layers < config.num_hidden_layers ? ", in " + std::to_string(layers) + " layers" : "");
}

void print_config(const models::DecoderConfig& config) {
  std::printf("  %s: %s (%s exactly)\n", train::for_terminal(config.model_type).c_str(),
              train::size_text(config).c_str(), train::with_thousands(models::num_parameters(config)).c_str());
  std::printf("  vocabulary %s, hidden %ld, mlp %ld, layers %ld, heads %ld / %ld of %ld, %s embeddings%s%s%s%s\n",
              train::with_thousands(config.vocab_size).c_str(), config.hidden_size, config.intermediate_size,
              config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
              config.tie_word_embeddings ? "tied" : "separate",
              config.attention_bias == models::AttentionBias::kNone ? "" : ", biases",
              config.has_qk_norm ? ", norms of q and k" : "", window_text(config).c_str(),
              experts_text(config).c_str());
  for (const std::string& warning : config.warnings) {
    std::printf("  note: %s\n", train::for_terminal(warning).c_str());
  }
}

// Throws io::Error(kModel) with a table of what does not fit.
void check_fit(const models::DecoderConfig& config, const fs::path& path) {
  const models::Decoder decoder(config, at::TensorOptions().device(at::kMeta));  // names and shapes, no memory
  std::vector<models::ExpectedTensor> expected;
  for (const auto& parameter : decoder->named_parameters()) {
    expected.push_back({parameter.key(), parameter.value().sizes().vec()});
  }
  models::check_weights(models::expected_tensors(expected, config), io::ModelFolder::open(path));
  std::puts("  the weights fit config.json");
}

void inspect_checkpoint(const fs::path& folder, LayerLines layers) {
  const io::CheckpointManifest manifest = io::read_manifest(folder);
  std::printf("checkpoint %s: step %s, written %s by %ld rank(s), %s\n", folder.c_str(),
              train::with_thousands(manifest.step).c_str(), train::for_terminal(manifest.created).c_str(),
              manifest.world_size, train::for_terminal(manifest.writer).c_str());
  std::vector<TensorLine> lines;
  for (const io::CheckpointTensor& tensor : manifest.tensors) {
    lines.push_back({tensor.name, tensor.shape, std::string(io::name(tensor.dtype)),
                     static_cast<uint64_t>(tensor.numel()) * io::item_size(tensor.dtype)});
  }
  std::fputs(tensor_table(lines, layers).c_str(), stdout);
}

void inspect_weights(const fs::path& path, LayerLines layers) {
  const std::unique_ptr<io::WeightSource> source = io::open_weight_source(path);
  std::printf("%s %s\n", train::for_terminal(source->description()).c_str(), path.c_str());
  std::vector<TensorLine> lines;
  for (const io::WeightTensor& tensor : source->tensors()) {
    const uint64_t bytes = tensor.dtype ? static_cast<uint64_t>(tensor.numel()) * io::item_size(*tensor.dtype) : 0;
    lines.push_back({tensor.name, tensor.shape, tensor.type, bytes});
  }
  std::fputs(tensor_table(lines, layers).c_str(), stdout);
  for (const std::string& name : source->left_out()) {
    std::printf("  no weights: %s\n", io::in_quotes(name).c_str());
  }
  if (!source->config()) return;
  const auto config = models::parse_decoder_config(*source->config(), io::in_quotes((path / "config.json").string()));
  print_config(config);
  check_fit(config, path);
}

void inspect_config(const fs::path& folder) {
  std::printf("config.json %s, without weights\n", folder.c_str());
  print_config(models::read_decoder_config(folder));
}

void inspect_path(const fs::path& path, bool verify, LayerLines layers) {
  if (fs::exists(path / "dataset.json")) return inspect_data(path, verify);
  if (verify && fs::exists(path)) {
    throw Error(ErrorCode::kUsage, "[inspect] --verify: got " + io::in_quotes(path.string()) +
                                       ", which is no data set, expected one. `fsdp verify` compares checkpoints with "
                                       "their hashes; model folders have none.");
  }
  if (fs::exists(path / io::kManifestName)) return inspect_checkpoint(path, layers);
  const bool has_weights = fs::exists(path / "model.safetensors") || fs::exists(path / "model.safetensors.index.json");
  if (fs::exists(path / "config.json") && !has_weights) return inspect_config(path);
  if (path.filename() == "config.json" && fs::is_regular_file(path)) return inspect_config(path);
  inspect_weights(path, layers);
}

void print_preset(const models::Preset& preset, bool json) {
  if (json) {
    std::puts(models::to_hugging_face(preset.config).dump(2).c_str());
    return;
  }
  std::printf("preset %s: the shape of %s\n", preset.name.c_str(), preset.published.c_str());
  print_config(preset.config);
}

void print_presets() {
  std::printf("%-16s %16s %10s %7s %6s %8s %8s  %s\n", "preset", "parameters", "bf16", "hidden", "layers", "heads",
              "vocab", "published as");
  for (const models::Preset& preset : models::presets()) {
    const models::DecoderConfig& config = preset.config;
    const std::string heads =
        std::to_string(config.num_attention_heads) + "/" + std::to_string(config.num_key_value_heads);
    std::printf("%-16s %16s %10s %7ld %6ld %8s %8ld  %s\n", preset.name.c_str(),
                train::with_thousands(models::num_parameters(config)).c_str(),
                format_bytes(2 * models::num_parameters(config)).c_str(), config.hidden_size, config.num_hidden_layers,
                heads.c_str(), config.vocab_size, preset.published.c_str());
  }
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  std::string path;
  std::string preset;
  bool presets = false;
  bool verify = false;
  bool each = false;
  bool json = false;
  CLI::App parser(
      "Says what a model folder, a checkpoint or a data set holds, and what models are known by name.\n"
      "Of weights: a table of names, shapes, types and bytes, and whether they fit config.json.",
      "fsdp inspect");
  auto* path_option = parser.add_option("PATH", path, "data set, model folder, .safetensors file or checkpoint");
  auto* preset_option = parser.add_option("--preset", preset, "the model that --model.preset=NAME trains");
  auto* presets_option = parser.add_flag("--presets", presets, "table of all presets");
  parser.add_flag("--json", json, "with --preset: print its config.json");
  parser.add_flag("--tensors", each, "one line per tensor, instead of one for all layers");
  parser.add_flag("--verify", verify, "data set: read everything and compare with the stored hashes");
  path_option->excludes(preset_option)->excludes(presets_option);
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  if (presets) {
    print_presets();
  } else if (!preset.empty()) {
    print_preset(train::preset_named(preset), json);
  } else if (!path.empty()) {
    inspect_path(path, verify, each ? LayerLines::kEach : LayerLines::kTogether);
  } else {
    throw Error(ErrorCode::kUsage, "[inspect] got nothing to inspect. Pass a folder, --preset NAME or --presets.");
  }
  return 0;
}

}  // namespace fsdp::app
