#include "train/prepare/prepare.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "fsdp/base/fault_point.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

// "5%" or "0.05" is a share, "500" a number of documents.
void parse_holdout(const std::string& text, train::PrepareOptions& options) {
  const bool is_percent = !text.empty() && text.back() == '%';
  const char* end = text.data() + text.size() - (is_percent ? 1 : 0);
  double number = -1;
  const auto [used, error] = std::from_chars(text.data(), end, number);
  const bool is_number = error == std::errc() && used == end;
  const bool is_count = !is_percent && text.find_first_not_of("0123456789") == std::string::npos && number >= 1;
  const double share = is_percent ? number / 100 : number;
  if (!is_number || !(is_count ? number < 1e15 : share >= 0 && share < 1)) {
    throw Error(ErrorCode::kUsage, "[prepare] --holdout: got " + text +
                                       ", expected a share such as 5% or 0.05, or a number of documents such as 500");
  }
  options.holdout_documents = is_count ? static_cast<int64_t>(number) : 0;
  options.holdout = is_count ? 0 : share;
}

std::vector<std::string> split_extensions(const std::string& list) {
  std::vector<std::string> extensions;
  size_t begin = 0;
  while (!list.empty() && begin <= list.size()) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, comma - begin);
    if (item.empty() || item == ".") {
      throw Error(ErrorCode::kUsage,
                  "[prepare] --include: got an empty extension, expected some such as .txt,.jsonl.gz");
    }
    extensions.push_back(item.front() == '.' ? item : "." + item);
    begin = comma + 1;
  }
  return extensions;
}

std::string split_line(const char* name, const train::PreparedSplit& split, const train::PrepareResult& result) {
  const int64_t documents = result.train.num_documents + result.heldout.num_documents;
  std::string line = train::format_text(
      "prepare: %-8s %15s documents (%.2f%%) %18s tokens", name, train::with_thousands(split.num_documents).c_str(),
      100.0 * static_cast<double>(split.num_documents) / static_cast<double>(std::max<int64_t>(1, documents)),
      train::with_thousands(split.num_tokens).c_str());
  if (split.num_answers < split.num_tokens) {
    line += train::format_text(", %s of answers", train::with_thousands(split.num_answers).c_str());
  }
  return line;
}

void print_result(const train::PrepareResult& result, const std::string& output, bool wants_heldout,
                  train::Console& console) {
  const double megabytes = static_cast<double>(result.num_text_bytes) / 1e6;
  console.line(split_line("train", result.train, result));
  console.line(split_line("heldout", result.heldout, result));
  if (wants_heldout && result.heldout.num_documents == 0) {
    console.line("prepare: nothing was held out: " + train::with_thousands(result.train.num_documents) +
                 " document(s) are few for that share. A .txt file is one document unless --separator cuts it; "
                 "--holdout 1 holds out one");
  }
  const int64_t tokens = result.train.num_tokens + result.heldout.num_tokens;
  console.line(train::format_text(
      "prepare: %s files (%s empty), %.1f MB of text, %.2f bytes per token, %s empty documents left out",
      train::with_thousands(result.num_files).c_str(), train::with_thousands(result.num_empty_files).c_str(), megabytes,
      static_cast<double>(result.num_text_bytes) / static_cast<double>(std::max<int64_t>(1, tokens)),
      train::with_thousands(result.num_empty_documents).c_str()));
  if (result.num_skipped > 0) {
    console.line("prepare: " + train::with_thousands(result.num_skipped) + " bad records skipped; the first:");
    for (const std::string& reason : result.skipped_because) console.line("prepare:   " + reason);
  }
  if (result.num_reused_shards > 0) {
    console.line("prepare: " + train::with_thousands(result.num_reused_shards) +
                 " pieces were finished by a run that was interrupted");
  }
  console.line(train::format_text("prepare: wrote %s in %.1f s, %.1f MB/s on %d thread(s)", output.c_str(),
                                  result.seconds, megabytes / std::max(result.seconds, 1e-9), result.threads));
}

}  // namespace

int run_prepare(const Arguments& arguments) {
  train::PrepareOptions options;
  std::string output;
  std::string include;
  std::string holdout = "5%";
  std::string bad_record = "stop";
  CLI::App parser("Turns documents into a data set of tokens: .txt, .jsonl and .parquet files, also .gz and .zst.",
                  "fsdp prepare");
  parser.add_option("INPUT", options.inputs, "files, folders that are searched recursively, and globs")->required();
  parser.add_option(kOutput, output, "data set folder to write")->required();
  parser.add_option("--tokenizer", options.tokenizer,
                    "folder with tokenizer.json, or `bytes` (the default): one token per byte");
  parser.add_option("--text-field", options.documents.text_field,
                    "field of JSON lines, or column, that holds the text; default text");
  parser.add_option("--separator", options.documents.separator,
                    "line that ends a document in .txt files; default: a file is one document");
  parser.add_option("--chat", options.chat,
                    "the lines are conversations; learn the answers only. How they are written: auto (as the tokenizer "
                    "says), plain, chatml, llama2, llama3, mistral or smollm3");
  bool pairs = false;
  parser.add_flag("--pairs", pairs,
                  "with --chat: the lines are preferences, {\"prompt\", \"chosen\", \"rejected\"}, for tune.loss=dpo");
  parser.add_option("--bad-record", bad_record, "stop (the default) at a bad record, or skip and count it")
      ->check(CLI::IsMember({"stop", "skip"}));
  parser.add_option("--include", include, "in folders, take only these extensions: .txt,.jsonl.gz");
  parser.add_option("--holdout", holdout,
                    "share of the documents (5%, the default), or their number (500), for the split `heldout`");
  parser.add_option("--threads", options.threads, "default: one per core")->check(CLI::Range(0, 1024));
  parser
      .add_option("--max-document-bytes", options.documents.max_document_bytes,
                  "a longer document is a bad record (with `bytes`, a longer text file is cut); default 64 MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  parser.add_option("--shard-bytes", options.shard_bytes, "text per shard; default: 1/64 of all, 1 MiB to 1 GiB")
      ->check(CLI::Range(int64_t{1} << 16, int64_t{1} << 34));
  parser.add_flag("--overwrite", options.overwrite, "replace an existing data set");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  options.output = output;
  if (pairs) options.lines = train::ChatLines::kPairs;
  options.extensions = split_extensions(include);
  options.documents.bad_record = bad_record == "skip" ? io::BadRecord::kSkip : io::BadRecord::kStop;
  parse_holdout(holdout, options);
  faults::arm(0);

  train::Console console(train::Console::detect(stdout, 0));
  const bool wants_heldout = options.holdout > 0 || options.holdout_documents > 0;
  print_result(train::prepare(options, console), output, wants_heldout, console);
  return 0;
}

}  // namespace fsdp::app
