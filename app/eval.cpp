#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/command_line.h"
#include "io/base/error.h"
#include "io/tokens/token_shards.h"
#include "text/documents/document_reader.h"
#include "train/base/agreement.h"
#include "train/base/device.h"
#include "train/base/format.h"
#include "train/base/threads.h"
#include "train/data/data_splits.h"
#include "train/evaluate/multiple_choice.h"
#include "train/evaluate/perplexity.h"
#include "train/model/inference_model.h"

namespace fsdp::app {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t kUsualContext = 2048;  // tokens; what perplexities are most often given for

struct EvalOptions {
  std::string folder;
  std::vector<std::string> texts;
  std::string data;
  std::string split = "heldout";
  std::string multiple_choice;
  std::string precision = "fp32";
  std::string device = "cpu";
  int64_t context = 0;
  int64_t stride = 0;
  int64_t limit = 0;
  io::DocumentOptions documents;
  bool json = false;
};

Parsed parse_eval(const Arguments& arguments, EvalOptions& options) {
  CLI::App parser(
      "Measures a model: how likely it finds text, or which answers. Runs on one rank or many, with equal results.",
      "fsdp eval");
  parser.add_option("MODEL", options.folder, "model folder")->required();
  parser.add_option("--text", options.texts, "perplexity of files, folders or globs: text, .jsonl, .parquet");
  parser.add_option("--data", options.data, "perplexity of a data set of `fsdp prepare`");
  parser.add_option("--split", options.split, "of --data; default heldout");
  parser.add_option("--multiple-choice", options.multiple_choice,
                    "accuracy on a .jsonl file: {\"question\" or \"context\", \"choices\": [...], \"answer\": index}");
  parser
      .add_option("--context", options.context, "tokens of a window; default: what the model looks back, at most 2048")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30));
  parser.add_option("--stride", options.stride, "tokens from a window to the next; default: half of --context")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  parser.add_option("--separator", options.documents.separator, "line that ends a document in text files");
  parser.add_option("--text-field", options.documents.text_field, "of .jsonl and .parquet; default text");
  parser.add_option("--limit", options.limit, "so many documents or questions at most; default: all")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  parser.add_option("--precision", options.precision, "fp32 (default) or bf16");
  parser.add_option("--device", options.device, "cpu (default) or cuda: one GPU a rank");
  parser.add_flag("--json", options.json, "for machines");
  if (parse(parser, arguments) == Parsed::kHelpShown) return Parsed::kHelpShown;
  if (options.texts.empty() && options.data.empty() && options.multiple_choice.empty())
    throw Error(ErrorCode::kUsage, "[eval] got nothing to measure, expected --text, --data or --multiple-choice.");
  return Parsed::kRun;
}

class Evaluation {
 public:
  Evaluation(const EvalOptions& options, train::InferenceModel& model, const tokenizer::Tokenizer& tokenizer)
      : options_(options), model_(model), tokenizer_(tokenizer) {
    const int64_t usual = std::min(kUsualContext, model.config().max_position_embeddings);
    windows_.context = options.context == 0 ? usual : options.context;
    windows_.stride = options.stride == 0 ? std::max<int64_t>(1, windows_.context / 2) : options.stride;
  }

  Json run() {
    Json result;
    if (!options_.texts.empty()) result["text"] = evaluate_texts();
    if (!options_.data.empty()) result["data"] = evaluate_data();
    if (!options_.multiple_choice.empty()) result["multiple_choice"] = evaluate_choices();
    return result;
  }

 private:
  bool is_enough(int64_t count) const { return options_.limit > 0 && count >= options_.limit; }

  // Every rank reads every document: what a rank scores is decided later.
  Json evaluate_texts() {
    train::PerplexityMeter meter(model_, windows_);
    std::vector<int32_t> ids;
    int64_t count = 0;
    std::vector<io::InputPart> parts;
    train::on_all_ranks(model_.world(), [&] { parts = io::find_inputs(options_.texts, io::document_extensions()); });
    for (const io::InputPart& part : parts) {
      const auto reader = io::DocumentReader::open(part.path, options_.documents);
      for (io::Document document; !is_enough(count) && reader->next(document); ++count) {
        ids.clear();
        tokenizer_.encode(document.text, tokenizer::SpecialTokens::kAdd, ids);
        meter.add(ids, static_cast<int64_t>(document.text.size()));
      }
    }
    return describe(meter.result());
  }

  Json evaluate_data() {
    std::optional<io::TokenDataset> opened;
    train::on_all_ranks(model_.world(), [&] { opened = open_data(); });
    const io::TokenDataset& data = *opened;
    train::PerplexityMeter meter(model_, windows_);
    constexpr int64_t kPiece = int64_t{1} << 20;
    std::vector<int32_t> document, piece;
    int64_t count = 0;
    const auto flush = [&] {
      if (document.empty() || is_enough(count)) return;
      meter.add(document, num_bytes(document));
      document.clear();
      ++count;
    };
    for (int64_t first = 0; first < data.num_tokens() && !is_enough(count); first += kPiece) {
      piece.resize(static_cast<size_t>(std::min(kPiece, data.num_tokens() - first)));
      data.read(first, static_cast<int64_t>(piece.size()), piece.data());
      auto begin = piece.begin();
      for (const int64_t start : data.document_starts(first, static_cast<int64_t>(piece.size()))) {
        document.insert(document.end(), begin, piece.begin() + start);
        begin = piece.begin() + start;
        flush();
      }
      document.insert(document.end(), begin, piece.end());
    }
    flush();
    return describe(meter.result());
  }

  io::TokenDataset open_data() const {
    io::TokenDataset data = io::TokenDataset::open(options_.data, options_.split);
    if (data.vocab_size() > model_.config().vocab_size) {
      throw Error(ErrorCode::kUsage, "[eval] --data: got a vocabulary of " + std::to_string(data.vocab_size()) +
                                         " tokens for a model of " + std::to_string(model_.config().vocab_size) +
                                         ". Use the data set that was made with the model's tokenizer.");
    }
    train::check_vocabulary(options_.folder, data);
    return data;
  }

  int64_t num_bytes(const std::vector<int32_t>& ids) const {
    return static_cast<int64_t>(tokenizer_.decode(ids, tokenizer::SkipSpecial::kYes).size());
  }

  Json describe(const train::Perplexity& sum) const {
    return {{"perplexity", sum.per_token()},
            {"nats_per_token", sum.num_tokens == 0 ? 0 : sum.nats / static_cast<double>(sum.num_tokens)},
            {"bits_per_byte", sum.bits_per_byte()},
            {"tokens", sum.num_tokens},
            {"bytes", sum.num_bytes},
            {"documents", sum.num_documents},
            {"context", windows_.context},
            {"stride", windows_.stride}};
  }

  std::vector<train::MultipleChoice> read_questions() const {
    std::ifstream file(options_.multiple_choice);
    if (!file) {
      throw io::Error(io::ErrorKind::kData, "[eval] " + io::in_quotes(options_.multiple_choice) +
                                                ": cannot be read. Name a .jsonl file of questions.");
    }
    std::vector<train::MultipleChoice> questions;
    std::string line;
    for (int64_t number = 1; std::getline(file, line) && !is_enough(static_cast<int64_t>(questions.size())); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      questions.push_back(train::parse_multiple_choice(line, options_.multiple_choice + ":" + std::to_string(number)));
    }
    return questions;
  }

  Json evaluate_choices() {
    std::vector<train::MultipleChoice> questions;
    train::on_all_ranks(model_.world(), [&] { questions = read_questions(); });
    const int64_t longest = options_.context == 0 ? model_.config().max_position_embeddings : options_.context;
    const auto result = train::evaluate(model_, tokenizer_, questions, longest);
    const int64_t count = result.num_questions;
    return {{"accuracy", result.accuracy()},
            {"accuracy_stderr", train::standard_error(result.accuracy(), count)},
            {"accuracy_normalized", result.accuracy_normalized()},
            {"accuracy_normalized_stderr", train::standard_error(result.accuracy_normalized(), count)},
            {"questions", count},
            {"texts_cut", result.num_cut}};
  }

  const EvalOptions& options_;
  train::InferenceModel& model_;
  const tokenizer::Tokenizer& tokenizer_;
  train::Windows windows_;
};

void print_perplexity(const char* name, const Json& result) {
  std::printf(
      "%s: perplexity %.4f per token (%.4f nats), %.4f bits per byte; %s tokens, %s bytes, %s documents; "
      "windows of %lld tokens, stride %lld\n",
      name, result["perplexity"].get<double>(), result["nats_per_token"].get<double>(),
      result["bits_per_byte"].get<double>(), train::with_thousands(result["tokens"].get<int64_t>()).c_str(),
      train::with_thousands(result["bytes"].get<int64_t>()).c_str(),
      train::with_thousands(result["documents"].get<int64_t>()).c_str(),
      static_cast<long long>(result["context"].get<int64_t>()),
      static_cast<long long>(result["stride"].get<int64_t>()));
}

void print_scores(const Json& result) {
  for (const char* name : {"text", "data"})
    if (result.contains(name)) print_perplexity(name, result[name]);
  if (!result.contains("multiple_choice")) return;
  const Json& choices = result["multiple_choice"];
  std::printf(
      "multiple choice: accuracy %.4f +- %.4f, normalized by length %.4f +- %.4f; %lld questions, %lld texts cut\n",
      choices["accuracy"].get<double>(), choices["accuracy_stderr"].get<double>(),
      choices["accuracy_normalized"].get<double>(), choices["accuracy_normalized_stderr"].get<double>(),
      static_cast<long long>(choices["questions"].get<int64_t>()),
      static_cast<long long>(choices["texts_cut"].get<int64_t>()));
}

}  // namespace

int run_eval(const Arguments& arguments) {
  EvalOptions options;
  if (parse_eval(arguments, options) == Parsed::kHelpShown) return 0;
  const World world = init();
  train::set_threads(world);
  c10::Device device = c10::kCPU;
  train::on_all_ranks(world, [&] { device = train::choose_device(options.device, "[eval] --device", world); });
  train::InferenceModel model(options.folder, options.precision, world, device);
  const at::NoGradGuard no_grad;
  std::optional<tokenizer::Tokenizer> tokenizer;
  train::on_all_ranks(world, [&] { tokenizer = tokenizer::Tokenizer::load(options.folder); });
  const auto start = Clock::now();
  const Json result = Evaluation(options, model, *tokenizer).run();
  if (world.rank != 0) return 0;
  if (options.json)
    std::printf("%s\n", result.dump(2).c_str());
  else
    print_scores(result);
  std::fprintf(stderr, "eval: %.2f s\n", std::chrono::duration<double>(Clock::now() - start).count());
  return 0;
}

}  // namespace fsdp::app
