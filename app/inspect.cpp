#include <cstdio>
#include <filesystem>
#include <set>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/model_folder.h"
#include "io/token_shards.h"
#include "models/decoder_config.h"
#include "train/format.h"

namespace fsdp::app {
namespace {

void inspect_data(const std::filesystem::path& folder, bool verify) {
  const io::DatasetManifest manifest = io::read_dataset_manifest(folder);
  std::printf("data set %s: tokenizer %s, %s tokens in the vocabulary\n", folder.c_str(), manifest.tokenizer.c_str(),
              train::with_thousands(manifest.vocab_size).c_str());
  for (const auto& [split, shards] : manifest.splits) {
    const io::TokenDataset data = io::TokenDataset::open(folder, split);
    if (verify) {
      data.verify_hashes();
    }
    std::printf("  %-10s %s tokens, %s documents, %zu shard(s)%s\n", split.c_str(),
                train::with_thousands(data.num_tokens()).c_str(), train::with_thousands(data.num_documents()).c_str(),
                shards.size(), verify ? ", hashes match" : "");
  }
}

void inspect_model(const std::filesystem::path& folder) {
  const models::DecoderConfig config = models::read_decoder_config(folder);
  std::printf("model %s: %s, %s parameters\n", folder.c_str(), config.model_type.c_str(),
              format_count(models::num_parameters(config)).c_str());
  std::printf("  vocabulary %ld, hidden %ld, mlp %ld, layers %ld, heads %ld / %ld of %ld, %s embeddings\n",
              config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers,
              config.num_attention_heads, config.num_key_value_heads, config.head_dim,
              config.tie_word_embeddings ? "tied" : "separate");
  for (const std::string& warning : config.warnings) {
    std::printf("  note: %s\n", warning.c_str());
  }
  const io::ModelFolder weights = io::ModelFolder::open(folder);
  std::set<std::string> types;
  for (const std::string& name : weights.names()) {
    types.emplace(io::name(weights.find(name)->entry->dtype));
  }
  std::printf("  weights: %zu tensors, %s,", weights.names().size(),
              format_bytes(static_cast<int64_t>(weights.total_bytes())).c_str());
  for (const std::string& type : types) {
    std::printf(" %s", type.c_str());
  }
  std::printf("\n");
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  std::string path;
  bool verify = false;
  CLI::App parser("Says what a model folder or a data set holds.", "fsdp inspect");
  parser.add_option("FOLDER", path, "data set or model folder")->required();
  parser.add_flag("--verify", verify, "data set: read everything and compare with the stored hashes");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  const std::filesystem::path folder = path;
  if (std::filesystem::exists(folder / "dataset.json")) {
    inspect_data(folder, verify);
  } else if (std::filesystem::exists(folder / "config.json")) {
    inspect_model(folder);
  } else {
    throw Error(ErrorCode::kUsage,
                "[inspect] " + path + ": has neither dataset.json nor config.json. Pass the folder of one.");
  }
  return 0;
}

}  // namespace fsdp::app
