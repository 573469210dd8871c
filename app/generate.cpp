#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "app/command_line.h"
#include "app/generate_prompts.h"
#include "io/base/error.h"
#include "io/hub/generation_config.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "text/unicode/utf8.h"
#include "train/base/agreement.h"
#include "train/base/device.h"
#include "train/base/format.h"
#include "train/base/terminal_text.h"
#include "train/base/threads.h"
#include "train/generate/generated_text.h"
#include "train/generate/generation.h"
#include "train/model/inference_model.h"

namespace fsdp::app {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct GenerateOptions {
  std::string folder;
  std::vector<std::string> adapter_texts;  // as they were given
  std::vector<train::NamedAdapter> adapters;
  std::string use;
  std::string base = "as_stored";
  PromptOptions prompts;
  std::string precision = "fp32";
  std::string device = "cpu";
  std::vector<std::string> stop_strings;
  std::vector<int64_t> stop_ids;
  int64_t max_tokens = 256;
  train::SamplingOptions sampling;
  train::GenerationOptions generation;
  bool json = false;

  bool keeps_codes() const { return train::has_codes(train::parse_base_format(base)); }
  bool is_interactive() const { return prompts.chat && prompts.messages.empty() && prompts.file.empty(); }
};

void add_sampling(CLI::App& parser, GenerateOptions& options) {
  train::SamplingOptions& sampling = options.sampling;
  parser.add_option("--max-tokens", options.max_tokens, "new tokens of each prompt; default 256")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  parser.add_option("--temperature", sampling.temperature, "0: the most likely token; default 1")
      ->check(CLI::Range(0.0, 100.0));
  parser.add_option("--top-k", sampling.top_k, "draw from this many likely tokens; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  parser.add_option("--top-p", sampling.top_p, "from the likeliest that together have this probability; 1: all");
  parser.add_option("--min-p", sampling.min_p, "from those with this share of the likeliest one's; 0: all");
  parser.add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: less of what was there; default 1");
  parser.add_option("--seed", sampling.seed, "of the first prompt; the next one has the next number; default 1");
  parser.add_option("--stop", options.stop_strings, "end before this text; may be given several times")
      ->allow_extra_args(false);
  parser.add_option("--stop-id", options.stop_ids, "end at this token id; may be given several times")
      ->allow_extra_args(false);
}

// "NAME=FOLDER", or a folder alone.
void check_adapters(GenerateOptions& options) {
  for (const std::string& text : options.adapter_texts) {
    const size_t sign = text.find('=');
    const bool has_name = sign != std::string::npos && !std::filesystem::exists(text);
    const std::string name = has_name ? text.substr(0, sign) : "";
    const auto& known = options.prompts.adapters;
    const bool is_taken = name == PromptOptions::kNoAdapter || std::count(known.begin(), known.end(), name) > 0;
    if (has_name && (name.empty() || is_taken))
      throw Error(ErrorCode::kUsage, "[generate] --adapter: got the name " + io::in_quotes(name) +
                                         ", expected another for each adapter, and not \"base\".");
    options.adapters.push_back({name, has_name ? text.substr(sign + 1) : text});
    if (has_name) options.prompts.adapters.push_back(name);
  }
  if (options.adapters.size() > 1 && options.prompts.adapters.size() < options.adapters.size())
    throw Error(ErrorCode::kUsage,
                "[generate] --adapter: got several, of which some have no name, expected NAME=FOLDER for each.");
  if (options.base != "as_stored" && !options.keeps_codes())
    throw Error(ErrorCode::kUsage,
                "[generate] --base: got " + io::in_quotes(options.base) + ", expected as_stored, nf4 or nf4_all.");
  if (!options.use.empty()) options.prompts.adapter = options.use;
  adapter_number(options.prompts, options.prompts.adapter);  // is there one?
}

Parsed parse_generate(const Arguments& arguments, GenerateOptions& options) {
  CLI::App parser("Prints prompts and what a model makes of them, or chats.", "fsdp generate");
  parser.add_option("MODEL", options.folder, "model folder, such as runs/train/model")->required();
  parser
      .add_option("--adapter", options.adapter_texts,
                  "LoRA adapter on top of it, of `fsdp train` or of peft, or a checkpoint of its run, worked into the "
                  "weights; NAME=FOLDER, several times: one of those that prompts choose from")
      ->allow_extra_args(false);
  parser.add_option(
      "--use", options.use,
      "adapter of prompts that name none by {\"adapter\": NAME} in a .jsonl; default: base, which is none");
  parser.add_option("--base", options.base,
                    "as_stored (default), or nf4: linear maps of the blocks rest as 4-bit codes once they are read; "
                    "nf4_all: embeddings and head, too");
  parser.add_option("--prompt", options.prompts.texts, "text to continue; default: the start of a document")
      ->allow_extra_args(false);
  parser.add_option("--prompts-file", options.prompts.file,
                    "a prompt a line; .jsonl: {\"prompt\": text} or a conversation a line");
  std::string chat;
  CLI::Option* chats = parser.add_option("--chat", chat,
                                         "chat in this format: auto (default), plain, chatml, llama2, llama3, mistral, "
                                         "smollm3; without --message or --prompts-file, line by line with you");
  chats->expected(0, 1)->default_str("auto");
  parser.add_option("--message", options.prompts.messages, "a user's message, to be answered")->allow_extra_args(false);
  parser.add_option("--system", options.prompts.system, "system message of every chat");
  add_sampling(parser, options);
  parser.add_option("--rows", options.generation.num_rows, "prompts that are continued together; default 8");
  parser.add_option("--context", options.generation.context, "most tokens of prompt and answer; default: the model's");
  parser.add_option("--precision", options.precision, "fp32 (default) or bf16");
  parser.add_option("--device", options.device, "cpu (default) or cuda: one GPU a rank");
  parser.add_flag("--json", options.json, "a line of JSON for each prompt");
  if (parse(parser, arguments) == Parsed::kHelpShown) return Parsed::kHelpShown;
  check_adapters(options);
  if (chats->count() > 0) options.prompts.chat = chat.empty() ? "auto" : chat;
  if (options.prompts.chat && !options.prompts.texts.empty())
    throw Error(ErrorCode::kUsage, "[generate] --prompt: got a text to continue, expected --message with --chat.");
  if (options.is_interactive() && options.json)
    throw Error(ErrorCode::kUsage, "[generate] --json: got a chat line by line, expected --message or --prompts-file.");
  return Parsed::kRun;
}

// Tokens that end a text: those that the model, its tokenizer and the chat format name.
std::vector<int64_t> stop_ids_of(const GenerateOptions& options, const models::DecoderConfig& config,
                                 const tokenizer::Tokenizer& tokenizer, bool has_chats) {
  std::vector<int64_t> ids = options.stop_ids;
  ids.insert(ids.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  for (const int64_t id : io::end_tokens_of(options.folder, config.vocab_size)) ids.push_back(id);
  if (tokenizer.eos()) ids.push_back(*tokenizer.eos());
  if (tokenizer.name() == train::byte_tokenizer::kName)
    ids.insert(ids.end(), {train::byte_tokenizer::kBegin, train::byte_tokenizer::kPad});
  if (has_chats) {
    const auto format = chat_format(tokenizer, options.prompts.chat.value_or("auto"));
    for (const int32_t id : chat::stop_ids(tokenizer, format)) ids.push_back(id);
  }
  return ids;
}

// A model writes any bytes it likes; a file or a program gets them as they are.
void print(const std::string& text) {
  static const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  std::fputs(is_terminal ? train::for_terminal(text).c_str() : text.c_str(), stdout);
  std::fflush(stdout);
}

// Counts and clocks of one run, told on standard error.
class Speed {
 public:
  void saw_token() {
    if (!first_) first_ = seconds();
  }
  void print(size_t num_prompts, int64_t num_read, int64_t num_written) const {
    const double total = seconds();
    std::fprintf(
        stderr,
        "generate: %zu prompt(s), %lld tokens read, %lld written in %.2f s: %.1f tokens/s, the first after %.0f ms\n",
        num_prompts, static_cast<long long>(num_read), static_cast<long long>(num_written), total,
        static_cast<double>(num_written) / std::max(total, 1e-9), 1e3 * first_.value_or(total));
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  Clock::time_point start_ = Clock::now();
  std::optional<double> first_;
};

// All prompts of a run: those of this rank are continued here.
class Batch {
 public:
  Batch(const GenerateOptions& options, train::InferenceModel& model, const tokenizer::Tokenizer& tokenizer)
      : options_(options), model_(model), tokenizer_(tokenizer) {}

  void run() {
    const World& world = model_.world();
    train::on_all_ranks(world, [&] {
      train::GenerationOptions generation = options_.generation;
      generation.adapters = model_.adapters();
      generator_.emplace(model_.decoder(), generation);
      prompts_ = read_prompts(options_.prompts, tokenizer_);
      const bool has_chats =
          std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& prompt) { return prompt.is_chat; });
      const std::vector<int64_t> stop_ids = stop_ids_of(options_, model_.config(), tokenizer_, has_chats);
      for (size_t i = 0; i < prompts_.size(); ++i)
        if (i % static_cast<size_t>(world.size) == static_cast<size_t>(world.rank)) add(i, stop_ids);
    });
    while (is_needed(world)) {
      if (generator_->has_work())
        generator_->step();
      else
        model_.idle_forward();
    }
    if (world.size > 1) collect(world);
    if (world.rank == 0) speed_.print(prompts_.size(), num_read_, num_written_);
  }

 private:
  bool is_streamed() const { return prompts_.size() == 1 && !options_.json; }

  bool is_needed(const World& world) {
    const bool mine = generator_->has_work();
    if (world.size == 1) {
      num_read_ = generator_->num_prompt_tokens();
      num_written_ = generator_->num_new_tokens();
      return mine;
    }
    return sum_over_ranks(world, at::full({1}, mine ? 1 : 0, at::kLong)).item<int64_t>() > 0;
  }

  void add(size_t index, const std::vector<int64_t>& stop_ids) {
    auto text = std::make_shared<train::GeneratedText>(tokenizer_, options_.stop_strings);
    train::GenerationRequest request{
        .prompt = prompts_[index].ids, .stop_ids = stop_ids, .sampling = options_.sampling};
    request.sampling.seed += index;
    request.max_tokens = options_.max_tokens;
    request.adapter = prompts_[index].adapter;
    request.on_token = [this, text](int64_t id) {
      speed_.saw_token();
      const std::string certain = text->push(id);
      if (is_streamed()) print(certain);
      return text->stopped() ? train::Verdict::kStop : train::Verdict::kContinue;
    };
    request.on_finish = [this, text, index](train::Finish why) {
      const std::string rest = text->finish();
      if (is_streamed()) return print(rest + "\n");
      done_[index] = {{"index", index},
                      {"prompt", tokenizer::to_valid_utf8(prompts_[index].text)},
                      {"text", text->text()},
                      {"prompt_tokens", prompts_[index].ids.size()},
                      {"tokens", text->ids().size()},
                      {"finish", train::name(why)},
                      {"ids", text->ids()}};
      if (model_.adapters())
        done_[index]["adapter"] = prompts_[index].adapter < 0
                                      ? PromptOptions::kNoAdapter
                                      : options_.adapters[static_cast<size_t>(prompts_[index].adapter)].name;
      if (model_.world().size == 1) print_done();
    };
    generator_->add(std::move(request));
    if (is_streamed() && !prompts_[index].is_chat) print(tokenizer::to_valid_utf8(prompts_[index].text));
  }

  // Results are printed in the order of the prompts.
  void print_done() {
    for (auto next = done_.find(num_printed_); next != done_.end(); next = done_.find(++num_printed_)) {
      const Json& result = next->second;
      print(options_.json ? result.dump() + "\n"
                          : result["prompt"].get<std::string>() + result["text"].get<std::string>() + "\n\n");
    }
  }

  // COLLECTIVE. Rank 0 gets the results of all.
  void collect(const World& world) {
    Json mine = Json::array();
    for (const auto& [index, result] : done_) mine.push_back(result);
    const std::vector<std::string> all = gather_strings(world, mine.dump());
    const at::Tensor counts = sum_over_ranks(
        world,
        at::tensor(std::vector<int64_t>{generator_->num_prompt_tokens(), generator_->num_new_tokens()}, at::kLong));
    num_read_ = counts[0].item<int64_t>();
    num_written_ = counts[1].item<int64_t>();
    if (world.rank != 0) return;
    for (const std::string& text : all) {
      for (const Json& result : Json::parse(text)) done_[result["index"].get<size_t>()] = result;
    }
    print_done();
  }

  const GenerateOptions& options_;
  train::InferenceModel& model_;
  const tokenizer::Tokenizer& tokenizer_;
  std::optional<train::Generator> generator_;
  std::vector<Prompt> prompts_;
  std::map<size_t, Json> done_;
  size_t num_printed_ = 0;
  Speed speed_;
  int64_t num_read_ = 0;
  int64_t num_written_ = 0;
};

// A conversation on the terminal: a line is a message, an empty line or the end of input ends it.
void chat_on_terminal(const GenerateOptions& options, train::InferenceModel& model,
                      const tokenizer::Tokenizer& tokenizer) {
  const chat::Format format = chat_format(tokenizer, *options.prompts.chat);
  const std::vector<int64_t> stop_ids = stop_ids_of(options, model.config(), tokenizer, /*has_chats=*/true);
  train::GenerationOptions one_row = options.generation;
  one_row.num_rows = 1;
  one_row.prefixes = train::Prefixes::kReuse;
  one_row.adapters = model.adapters();
  train::Generator generator(model.decoder(), one_row);
  std::vector<chat::Message> messages;
  if (!options.prompts.system.empty()) messages.push_back({"system", options.prompts.system});
  train::SamplingOptions sampling = options.sampling;
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  for (std::string line;; ++sampling.seed) {
    if (is_terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line.empty()) break;
    messages.push_back({"user", line});
    train::GeneratedText text(tokenizer, options.stop_strings);
    train::GenerationRequest request{.prompt = conversation_prompt(tokenizer, format, messages).ids,
                                     .stop_ids = stop_ids,
                                     .sampling = sampling,
                                     .max_tokens = options.max_tokens,
                                     .adapter = adapter_number(options.prompts, options.prompts.adapter)};
    request.on_token = [&](int64_t id) {
      print(text.push(id));
      return text.stopped() ? train::Verdict::kStop : train::Verdict::kContinue;
    };
    generator.add(std::move(request));
    while (generator.has_work()) generator.step();
    print(text.finish() + "\n");
    messages.push_back({"assistant", text.text()});
  }
}

}  // namespace

int run_generate(const Arguments& arguments) {
  GenerateOptions options;
  if (parse_generate(arguments, options) == Parsed::kHelpShown) return 0;
  const World world = init();
  if (options.is_interactive() && world.size > 1) {
    throw Error(ErrorCode::kUsage,
                "[generate] --chat: got " + std::to_string(world.size) +
                    " ranks, expected one for a chat line by line. Pass --message or --prompts-file.");
  }
  train::set_threads(world);
  c10::Device device = c10::kCPU;
  train::on_all_ranks(world, [&] { device = train::choose_device(options.device, "[generate] --device", world); });
  if (options.keeps_codes() && world.size > 1)
    throw Error(ErrorCode::kUsage, "[generate] --base: got " + options.base + " with " + std::to_string(world.size) +
                                       " ranks, expected one. Leave it out, or start one.");
  if (options.keeps_codes() && !options.adapters.empty() && options.prompts.adapters.empty())
    throw Error(ErrorCode::kUsage, "[generate] --adapter: got one to be worked into weights that --base " +
                                       options.base +
                                       " keeps as codes, expected a "
                                       "name: --adapter NAME=FOLDER --use NAME keeps it beside them.");
  train::InferenceModel model(options.folder, options.precision, world, device, options.adapters,
                              train::parse_base_format(options.base));
  at::set_num_threads(train::useful_threads(models::num_parameters(model.config()), at::get_num_threads()));
  const at::NoGradGuard no_grad;
  std::optional<tokenizer::Tokenizer> tokenizer;
  train::on_all_ranks(world, [&] { tokenizer = tokenizer::Tokenizer::load(options.folder); });
  if (options.is_interactive())
    chat_on_terminal(options, model, *tokenizer);
  else
    Batch(options, model, *tokenizer).run();
  return 0;
}

}  // namespace fsdp::app
