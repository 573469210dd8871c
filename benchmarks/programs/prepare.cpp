// How fast `fsdp prepare` turns JSON lines into tokens, beside what bounds it: the disk that is read, and the tokenizer
// alone, on the same text and threads. Prints one line of JSON; rates in MB of text per second.
#include "train/prepare/prepare.h"

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/raw_disk.h"
#include "text/tokenizer/tokenizer.h"
#include "train/prepare/document_stream.h"

namespace fsdp::benchmarks::prepare_program {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string input;
  std::string tokenizer;
  std::string folder;
  int threads = 1;
  int64_t max_megabytes = 64;  // that the tokenizer alone gets: they are held in memory
};

double rate(int64_t bytes, double ms) { return static_cast<double>(bytes) / 1e3 / ms; }

struct Texts {
  std::vector<std::string> documents;
  int64_t bytes = 0;
};

Texts read_texts(const Options& options) {
  train::DocumentStream stream({{options.input, fs::file_size(options.input)}}, {});
  Texts texts;
  for (io::Document document; texts.bytes < options.max_megabytes * 1'000'000 && stream.next(document);) {
    texts.documents.emplace_back(document.text);
    texts.bytes += static_cast<int64_t>(document.text.size());
  }
  return texts;
}

double tokenizer_alone(const Options& options) {
  const auto tokenizer =
      options.tokenizer == "bytes" ? tokenizer::Tokenizer::bytes() : tokenizer::Tokenizer::load(options.tokenizer);
  const Texts texts = read_texts(options);
  std::atomic<size_t> next{0};
  benchmarks::Stopwatch watch;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < options.threads; ++i) {
      threads.emplace_back([&] {
        std::vector<int32_t> ids;
        for (size_t at = next++; at < texts.documents.size(); at = next++) {
          ids.clear();
          tokenizer.encode(texts.documents[at], tokenizer::SpecialTokens::kAdd, ids);
        }
      });
    }
  }
  return rate(texts.bytes, watch.lap());
}

double disk_alone(const Options& options) {
  const fs::path file = options.input;
  const auto bytes = static_cast<int64_t>(fs::file_size(file));
  benchmarks::drop_from_cache(fs::absolute(file).parent_path());
  benchmarks::Stopwatch watch;
  benchmarks::read_raw(file, {.threads = 1, .direct = false, .reserved = false});
  return rate(bytes, watch.lap());
}

nlohmann::ordered_json prepare_whole(const Options& options) {
  train::PrepareOptions wanted;
  wanted.inputs = {options.input};
  wanted.output = fs::path(options.folder) / "prepared";
  wanted.tokenizer = options.tokenizer;
  wanted.threads = options.threads;
  fs::remove_all(wanted.output);
  benchmarks::drop_from_cache(fs::absolute(options.input).parent_path());
  train::Console console(train::Console::Sink::kSilent);
  benchmarks::Stopwatch watch;
  const double cpu_before = benchmarks::process_usage().cpu_ms;
  const train::PrepareResult result = train::prepare(wanted, console);
  const double ms = watch.lap();
  const double cpu_ms = benchmarks::process_usage().cpu_ms - cpu_before;
  fs::remove_all(wanted.output);
  return {{"text_bytes", result.num_text_bytes},
          {"tokens", result.train.num_tokens + result.heldout.num_tokens},
          {"mb_per_s", rate(result.num_text_bytes, ms)},
          {"mb_per_cpu_s", rate(result.num_text_bytes, cpu_ms)}};
}

}  // namespace

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of fsdp prepare.");
  app.add_option("--input", options.input, "a .jsonl file")->required();
  app.add_option("--tokenizer", options.tokenizer, "folder with tokenizer.json, or bytes")->required();
  app.add_option("--folder", options.folder, "to write to")->required();
  app.add_option("--threads", options.threads);
  parse_or_exit(app, argc, argv);
  nlohmann::ordered_json result = prepare_whole(options);
  result["threads"] = options.threads;
  result["tokenizer_mb_per_s"] = tokenizer_alone(options);
  result["disk_mb_per_s"] = disk_alone(options);
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace fsdp::benchmarks::prepare_program
