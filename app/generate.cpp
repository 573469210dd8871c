#include <ATen/Parallel.h>

#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "io/model_folder.h"
#include "models/decoder.h"
#include "models/load_weights.h"
#include "train/byte_tokenizer.h"
#include "train/generation.h"
#include "train/threads.h"

namespace fsdp::app {
namespace {

namespace bytes = train::byte_tokenizer;

constexpr int64_t kSharedFrom = 100'000'000;  // parameters

models::Decoder load_model(const std::filesystem::path& folder) {
  models::Decoder model(models::read_decoder_config(folder));
  if (!std::filesystem::exists(folder / bytes::kMarkerFile) || model->config().vocab_size < bytes::kVocabSize) {
    throw Error(ErrorCode::kUsage, "[generate] " + folder.string() + ": its tokenizer is not the byte tokenizer (no " +
                                       bytes::kMarkerFile + "). Use a model that was trained on `fsdp prepare` data.");
  }
  models::load_weights(*model, io::ModelFolder::open(folder));
  model->eval();
  return model;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

int run_generate(const Arguments& arguments) {
  std::string folder;
  std::string prompt;
  train::GenerationOptions options;
  CLI::App parser("Prints a prompt and what the model makes of it.", "fsdp generate");
  parser.add_option("MODEL", folder, "model folder, such as runs/train/model")->required();
  parser.add_option("--prompt", prompt, "text to continue; default: the start of a document");
  parser.add_option("--max-tokens", options.max_tokens, "default 256")->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  parser.add_option("--temperature", options.temperature, "0: the most likely token; default 1")
      ->check(CLI::Range(0.0, 100.0));
  parser.add_option("--top-k", options.top_k, "draw from this many likely tokens; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  parser.add_option("--seed", options.seed, "default 1");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  models::Decoder model = load_model(folder);
  // A row of one token is too little work to share: below some size, threads only wait for each other.
  const bool small = models::num_parameters(model->config()) < kSharedFrom;
  at::set_num_threads(small ? 1 : static_cast<int>(train::available_cores().size()));
  std::vector<int64_t> ids{bytes::kBegin};
  for (const char c : prompt) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  train::Utf8Stream text;
  print(train::to_valid_utf8(prompt));
  train::generate(model, ids, {bytes::kBegin, bytes::kEnd, bytes::kPad}, options, [&](int64_t id) {
    if (bytes::is_byte(id)) {
      print(text.push(static_cast<unsigned char>(id)));
    }
  });
  print(text.finish() + "\n");
  return 0;
}

}  // namespace fsdp::app
