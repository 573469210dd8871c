#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "text/chat/format.h"
#include "text/tokenizer_training/training.h"
#include "train/base/console.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;
namespace training = tokenizer_training;
using Clock = std::chrono::steady_clock;
using tokenizer::Tokenizer;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Tokenizer load_tokenizer(const std::string& name) {
  return name == "bytes" ? Tokenizer::bytes() : Tokenizer::load(name);
}

// A whole file, or standard input for "-".
std::string read_input(const std::string& name) {
  std::ifstream file;
  if (name != "-") {
    file.open(name, std::ios::binary);
    if (!file.is_open() || fs::is_directory(name)) {
      throw Error(ErrorCode::kData, "[tokenizer] " + name +
                                        ": cannot be read. Pass a text file, or - for the standard "
                                        "input.");
    }
  }
  std::istream& stream = name == "-" ? std::cin : file;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Special tokens in their order, those that have a role last where they were not named.
std::vector<std::string> all_special(std::vector<std::string> tokens, const training::TokenizerOptions& roles) {
  for (const std::string& token : {roles.end_token, roles.begin_token, roles.pad_token}) {
    if (!token.empty() && std::find(tokens.begin(), tokens.end(), token) == tokens.end()) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

struct TrainArguments {
  training::TrainingOptions options;
  std::string output;
  std::string pattern = "gpt2";
  std::vector<std::string> special;
  uint64_t word_memory_mb = 2048;
  bool skip_bad = false;
  bool overwrite = false;
};

void add_options(CLI::App& parser, TrainArguments& arguments) {
  training::TrainingOptions& options = arguments.options;
  training::TokenizerOptions& roles = options.tokenizer;
  parser.add_option("INPUT", options.inputs, "text, JSON lines or parquet: files, folders, globs")->required();
  parser.add_option(kOutput, arguments.output, "folder to write")->required();
  parser.add_option("--vocab-size", options.vocab_size, "tokens, special ones and the 256 bytes included")->required();
  parser.add_option("--special", arguments.special, "a special token, may be given again; default <|endoftext|>")
      ->allow_extra_args(false);
  parser.add_option("--eos", roles.end_token, "the token that ends a text; default: the first special token");
  parser.add_option("--bos", roles.begin_token, "a token that is put in front of every text; default: none");
  parser.add_option("--pad", roles.pad_token, "the token that fills up; default: none");
  parser.add_option("--pattern", arguments.pattern, "how text is cut into words: gpt2, llama3 or digits; default gpt2");
  parser.add_option("--min-frequency", options.min_frequency, "a rarer pair is not merged; default 2")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 40));
  parser.add_option("--text-field", options.documents.text_field, "of JSON objects and parquet columns; default text");
  parser.add_option("--separator", options.documents.separator, "a line that ends a document of a text file");
  parser.add_flag("--skip-bad", arguments.skip_bad, "pass over records that cannot be read, and count them");
  parser.add_option("--threads", options.words.threads, "default: one per core")->check(CLI::Range(0, 1024));
  parser
      .add_option("--word-memory-mb", arguments.word_memory_mb,
                  "for distinct words, the rarest are forgotten; default 2048")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20));
  parser.add_flag("--overwrite", arguments.overwrite, "replace the tokenizer of an existing folder");
}

void complete(TrainArguments& arguments) {
  training::TrainingOptions& options = arguments.options;
  const auto pattern = training::find_split_pattern(arguments.pattern);
  if (!pattern.has_value()) {
    throw Error(ErrorCode::kUsage,
                "[tokenizer train] --pattern: got " + arguments.pattern + ", expected gpt2, llama3 or digits.");
  }
  if (fs::exists(fs::path(arguments.output) / "tokenizer.json") && !arguments.overwrite) {
    throw Error(ErrorCode::kUsage, "[tokenizer train] " + arguments.output +
                                       ": holds a tokenizer already. Pass --overwrite to replace it, or another -o.");
  }
  training::TokenizerOptions& roles = options.tokenizer;
  if (arguments.special.empty() && roles.end_token.empty()) {
    arguments.special = {"<|endoftext|>"};
  }
  roles.pattern = *pattern;
  roles.end_token = roles.end_token.empty() ? arguments.special.front() : roles.end_token;
  roles.special_tokens = all_special(arguments.special, roles);
  options.words.max_bytes = arguments.word_memory_mb << 20;
  options.documents.bad_record = arguments.skip_bad ? io::BadRecord::kSkip : io::BadRecord::kStop;
  options.documents.max_document_bytes = int64_t{1} << 30;
}

// The status line, a few times a second.
class ProgressLine {
 public:
  explicit ProgressLine(train::Console& console) : console_(console) {}

  void show(const training::Progress& progress) {
    const double pause = console_.updates_in_place() ? 0.2 : 5;
    if (seconds_since(shown_) < pause) {
      return;
    }
    shown_ = Clock::now();
    const double share = static_cast<double>(progress.done) / std::max(1.0, static_cast<double>(progress.total));
    if (progress.stage == training::Progress::Stage::kCounting) {
      const double megabytes = static_cast<double>(progress.done) / 1e6;
      console_.status(train::format_text("tokenizer: counting words %3.0f%% | %.1f of %.1f MB | %.1f MB/s", 100 * share,
                                         megabytes, static_cast<double>(progress.total) / 1e6,
                                         megabytes / std::max(seconds_since(begin_), 1e-9)));
    } else {
      console_.status(train::format_text("tokenizer: merging %3.0f%% | %s of %s tokens", 100 * share,
                                         train::with_thousands(static_cast<int64_t>(progress.done)).c_str(),
                                         train::with_thousands(static_cast<int64_t>(progress.total)).c_str()));
    }
  }

 private:
  train::Console& console_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = begin_;
};

std::string thousands(uint64_t number) { return train::with_thousands(static_cast<int64_t>(number)); }

void report(const TrainArguments& arguments, const training::TrainingResult& result, double seconds,
            train::Console& console) {
  const auto num_tokens = static_cast<int64_t>(result.model.tokens.size());
  console.line("tokenizer: " + thousands(result.num_files) + " files, " + thousands(result.num_documents) +
               " documents, " + train::format_text("%.1f MB", static_cast<double>(result.num_bytes) / 1e6) + ", " +
               thousands(result.num_words) + " distinct words -> " + train::with_thousands(num_tokens) + " tokens in " +
               arguments.output + train::format_text(" | %.1f s", seconds));
  if (num_tokens < arguments.options.vocab_size) {
    console.line("note: no pair of tokens occurs " + std::to_string(arguments.options.min_frequency) +
                 " times any more, so there are fewer tokens than asked for");
  }
  if (result.num_skipped > 0) {
    console.line("note: " + thousands(result.num_skipped) + " records could not be read and were passed over");
  }
  if (result.num_long > 0) {
    console.line("note: " + thousands(result.num_long) + " words of more than 64 KiB were left out");
  }
  if (result.num_forgotten > 0) {
    console.line("note: " + thousands(result.num_forgotten) +
                 " rare words were forgotten to save memory, so rare tokens may differ; raise --word-memory-mb");
  }
}

int run_train_tokenizer(const Arguments& words) {
  TrainArguments arguments;
  CLI::App parser("Trains a byte-level BPE tokenizer on text, in Hugging Face's format.", "fsdp tokenizer train");
  add_options(parser, arguments);
  if (parse(parser, words) == Parsed::kHelpShown) {
    return 0;
  }
  complete(arguments);
  const auto begin = Clock::now();
  train::Console console(train::Console::detect(stdout, 0));
  ProgressLine line(console);
  const auto result =
      training::train_tokenizer(arguments.options, [&](const training::Progress& progress) { line.show(progress); });
  training::write_tokenizer(arguments.output, result.model, arguments.options.tokenizer);
  report(arguments, result, seconds_since(begin), console);
  return 0;
}

// One line of the text a token stands for, in quotes; control characters and the like escaped.
std::string piece_of(const Tokenizer& tokenizer, int32_t id) {
  std::string piece;
  for (const char c : tokenizer.token(id)) {
    piece += static_cast<unsigned char>(c) < 0x20 || c == 0x7F
                 ? train::format_text("\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)))
                 : std::string(1, c);
  }
  return std::to_string(id) + "\t" + piece + "\n";
}

void print_ids(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    text += (text.empty() ? "" : " ") + std::to_string(id);
  }
  std::printf("%s\n", text.c_str());
}

void print_stats(const std::string& text, size_t num_tokens, double seconds) {
  const double bytes = static_cast<double>(text.size());
  std::printf("%s bytes, %s tokens, %.3f bytes per token, %.1f MB/s, %s tokens/s\n", thousands(text.size()).c_str(),
              thousands(num_tokens).c_str(), bytes / std::max(1.0, static_cast<double>(num_tokens)),
              bytes / 1e6 / std::max(seconds, 1e-9),
              thousands(static_cast<uint64_t>(static_cast<double>(num_tokens) / std::max(seconds, 1e-9))).c_str());
}

int run_encode(const Arguments& words) {
  std::string input;
  std::string folder;
  bool shows_tokens = false;
  bool shows_stats = false;
  bool adds_special = false;
  CLI::App parser("Turns text into token ids, on one line.", "fsdp tokenizer encode");
  parser.add_option("FILE", input, "text file; - for the standard input")->required();
  parser.add_option("--tokenizer", folder, "folder of the tokenizer, or bytes")->required();
  parser.add_flag("--tokens", shows_tokens, "a line for each token instead: its id and how tokenizer.json writes it");
  parser.add_flag("--stats", shows_stats, "bytes per token and speed (one thread) instead");
  parser.add_flag("--add-special", adds_special, "with the special tokens that the tokenizer puts around a text");
  if (parse(parser, words) == Parsed::kHelpShown) {
    return 0;
  }
  const Tokenizer tokenizer = load_tokenizer(folder);
  const std::string text = read_input(input);
  const auto begin = Clock::now();
  const std::vector<int32_t> ids =
      tokenizer.encode(text, adds_special ? tokenizer::SpecialTokens::kAdd : tokenizer::SpecialTokens::kNone);
  const double seconds = seconds_since(begin);
  if (shows_tokens) {
    for (const int32_t id : ids) {
      std::fputs(piece_of(tokenizer, id).c_str(), stdout);
    }
  }
  if (shows_stats) {
    print_stats(text, ids.size(), seconds);
  }
  if (!shows_tokens && !shows_stats) {
    print_ids(ids);
  }
  return 0;
}

// Ids apart by white space or commas; brackets around them are fine.
std::vector<int32_t> parse_ids(const std::string& text, int64_t vocab_size) {
  constexpr const char* kBetween = " \t\r\n,[]";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || rest != text.data() + end || id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kData, "[tokenizer decode] byte offset " + std::to_string(at) + ": got " +
                                        io::in_quotes(std::string_view(text).substr(at, end - at)) +
                                        ", expected an id from 0 to " + std::to_string(vocab_size - 1) + ".");
    }
    ids.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

int run_decode(const Arguments& words) {
  std::string input;
  std::string folder;
  bool skips_special = false;
  CLI::App parser("Turns token ids into text.", "fsdp tokenizer decode");
  parser.add_option("FILE", input, "ids, apart by spaces or commas; - for the standard input")->required();
  parser.add_option("--tokenizer", folder, "folder of the tokenizer, or bytes")->required();
  parser.add_flag("--skip-special", skips_special, "without special tokens");
  if (parse(parser, words) == Parsed::kHelpShown) {
    return 0;
  }
  const Tokenizer tokenizer = load_tokenizer(folder);
  const std::vector<int32_t> ids = parse_ids(read_input(input), tokenizer.vocab_size());
  const std::string text =
      tokenizer.decode(ids, skips_special ? tokenizer::SkipSpecial::kYes : tokenizer::SkipSpecial::kNo);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

chat::Format find_format(const std::string& name, const Tokenizer& tokenizer) {
  if (name == "auto") {
    return chat::detect_format(tokenizer);
  }
  const std::optional<chat::Format> format = chat::find_format(name);
  if (!format.has_value()) {
    throw Error(ErrorCode::kUsage, "[tokenizer chat] --format: got " + name +
                                       ", expected auto, plain, chatml, llama2, llama3, mistral or smollm3.");
  }
  return *format;
}

// The chat's text, or a line for each token, with 1 where the loss is.
void show_chat(const Tokenizer& tokenizer, chat::Format format, std::string_view line, bool shows_tokens) {
  const std::vector<chat::Message> messages = chat::parse_conversation(line);
  if (!shows_tokens) {
    std::printf("%s\n", chat::render_text(tokenizer, format, messages).c_str());
    return;
  }
  const chat::Rendered rendered = chat::render(tokenizer, format, messages);
  for (size_t i = 0; i < rendered.ids.size(); ++i) {
    std::printf("%d\t%s", rendered.is_answer[i], piece_of(tokenizer, rendered.ids[i]).c_str());
  }
}

int run_chat(const Arguments& words) {
  std::string input;
  std::string folder;
  std::string format_name = "auto";
  bool shows_tokens = false;
  CLI::App parser("Shows what training makes of chats.", "fsdp tokenizer chat");
  parser.add_option("FILE", input, "JSON lines (also .gz, .zst) with a chat each, see docs/chat.md")->required();
  parser.add_option("--tokenizer", folder, "folder of the tokenizer, or bytes")->required();
  parser.add_option("--format", format_name, "auto (default), plain, chatml, llama2, llama3, mistral or smollm3");
  parser.add_flag("--tokens", shows_tokens, "a line for each token instead: 1 where the loss is, its id, what it is");
  if (parse(parser, words) == Parsed::kHelpShown) {
    return 0;
  }
  const Tokenizer tokenizer = load_tokenizer(folder);
  const chat::Format format = find_format(format_name, tokenizer);
  io::DocumentOptions options;
  options.whole_lines = true;
  const auto reader = io::DocumentReader::open(input, options);
  io::Document line;
  while (reader->next(line)) {
    try {
      show_chat(tokenizer, format, line.text, shows_tokens);
    } catch (const io::Error& error) {
      throw io::Error(error.kind(),
                      "[tokenizer chat] " + input + ":" + std::to_string(line.record) + ": " + error.what());
    }
  }
  return 0;
}

}  // namespace

int run_tokenizer(const Arguments& arguments) {
  const std::string action = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (action == "train") return run_train_tokenizer(rest);
  if (action == "encode") return run_encode(rest);
  if (action == "decode") return run_decode(rest);
  if (action == "chat") return run_chat(rest);
  const std::string usage = "fsdp tokenizer train | encode | decode | chat; each explains itself with --help";
  if (action == "--help" || action == "-h") {
    std::puts(("Usage: " + usage).c_str());
    return 0;
  }
  throw Error(ErrorCode::kUsage,
              "[tokenizer] got " + (action.empty() ? "no action" : action) + ", expected " + usage + ".");
}

}  // namespace fsdp::app
