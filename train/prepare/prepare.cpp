#include "train/prepare/prepare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <queue>
#include <thread>
#include <utility>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/base/atomic_file.h"
#include "io/base/hash.h"
#include "io/base/worker_threads.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "train/base/format.h"
#include "train/prepare/prepare_pool.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Files = std::vector<io::InputPart>;

struct Corpus {
  Files files;
  int64_t num_bytes = 0;
  int64_t num_empty = 0;  // files of no bytes, left out
};

Corpus find_corpus(const PrepareOptions& options) {
  Corpus corpus{io::find_inputs(options.inputs, options.extensions), 0, 0};
  corpus.num_empty =
      static_cast<int64_t>(std::erase_if(corpus.files, [](const io::InputPart& file) { return file.num_bytes == 0; }));
  for (const io::InputPart& file : corpus.files) corpus.num_bytes += static_cast<int64_t>(file.num_bytes);
  if (corpus.files.empty()) {
    throw Error(ErrorCode::kData, "[prepare] empty corpus: got " + std::to_string(corpus.num_empty) +
                                      " empty files and no others, expected text. Check the paths" +
                                      (options.extensions.empty() ? "." : " and --include."));
  }
  return corpus;
}

// Neighbours together until they are enough for a shard. Depends on the files alone.
std::vector<Files> group_files(const Files& files, int64_t shard_bytes) {
  std::vector<Files> groups;
  uint64_t group_bytes = 0;
  for (const io::InputPart& file : files) {
    if (groups.empty() || group_bytes >= static_cast<uint64_t>(shard_bytes)) {
      groups.emplace_back();
      group_bytes = 0;
    }
    groups.back().push_back(file);
    group_bytes += file.num_bytes;
  }
  return groups;
}

int num_threads(const PrepareOptions& options) {
  return options.threads > 0 ? options.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// The bound that `count` documents of all are below.
uint64_t bound_of_lowest(const std::vector<Files>& groups, const ReadOptions& reading, int64_t count, int threads) {
  std::mutex mutex;
  std::priority_queue<uint64_t> lowest;  // of all threads: the `count` lowest hashes, the highest of them on top
  int64_t num_documents = 0;
  io::run_workers(groups.size(), threads, [&](io::WorkQueue& queue) {
    while (const auto group = queue.next()) {
      DocumentStream stream(groups[*group], reading);
      for (io::Document document; stream.next(document);) {
        if (document.text.empty()) continue;
        const uint64_t hash = io::hash_bytes(document.text);
        const std::lock_guard lock(mutex);
        ++num_documents;
        lowest.push(hash);
        if (static_cast<int64_t>(lowest.size()) > count) lowest.pop();
      }
    }
  });
  if (num_documents <= count) {
    throw Error(ErrorCode::kData, "[prepare] --holdout: got " + std::to_string(count) + " of " +
                                      std::to_string(num_documents) +
                                      " documents, which leave nothing to train on. Hold out fewer.");
  }
  return lowest.top() == std::numeric_limits<uint64_t>::max() ? lowest.top() : lowest.top() + 1;
}

uint64_t bound_of_share(double share) {
  return share <= 0 ? 0 : static_cast<uint64_t>(std::min(std::ldexp(share, 64), std::ldexp(1.0, 64) - 2048));
}

PreparePlan make_plan(const PrepareOptions& options, int64_t num_bytes) {
  PreparePlan plan{
      {options.documents, Bytes::kText}, make_encoder(options.tokenizer, options.chat, options.lines), 0, 0, 4};
  const tokenizer::Tokenizer& tokenizer = plan.encoder.tokenizer();
  if (plan.encoder.has_answers()) {
    plan.reading.documents.whole_lines = true;
  } else if (tokenizer.name() == byte_tokenizer::kName) {
    plan.reading.bytes = Bytes::kAny;
  }
  plan.shard_bytes = options.shard_bytes > 0 ? options.shard_bytes : std::clamp(num_bytes / 64, kMiB, kGiB);
  plan.bytes_per_token = tokenizer.vocab_size() <= (1 << 16) ? 2 : 4;
  return plan;
}

std::string progress_line(const PrepareProgress& progress, int64_t num_bytes, double seconds) {
  const auto done = static_cast<double>(progress.file_bytes);
  const auto total = static_cast<double>(num_bytes);
  const double share = std::min(1.0, done / total);
  const double rate = std::max(1.0, (done - static_cast<double>(progress.reused_bytes)) / std::max(seconds, 1e-9));
  std::string bar(20, '.');
  std::fill_n(bar.begin(), static_cast<size_t>(20 * share), '#');
  return format_text("prepare [%s] %3.0f%% | %.1f of %.1f MB | %.1f MB/s of text | %s tokens | eta %s", bar.c_str(),
                     100 * share, done / 1e6, total / 1e6,
                     static_cast<double>(progress.text_bytes) / 1e6 / std::max(seconds, 1e-9),
                     with_thousands(progress.tokens).c_str(), clock_text(std::max(0.0, total - done) / rate).c_str());
}

void copy_tokenizer(const std::string& tokenizer, const fs::path& folder) {
  constexpr const char* kFiles[] = {"tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json", "chat_template.jinja",   byte_tokenizer::kMarkerFile};
  fs::create_directories(folder);
  if (tokenizer == byte_tokenizer::kName) {
    io::write_file_atomically(folder / byte_tokenizer::kMarkerFile, byte_tokenizer::marker_json());
    return;
  }
  const fs::path from = fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
  for (const char* name : kFiles) {
    if (fs::is_regular_file(from / name)) io::copy_file_atomically(from / name, folder / name, io::ErrorKind::kModel);
  }
}

// Adds up what came of the pieces, in their order.
io::DatasetManifest collect(const PreparePool::Tasks& tasks, PrepareResult& result) {
  io::DatasetManifest manifest;
  Skipped skipped;
  for (const auto& task : tasks) {
    result.num_reused_shards += task->num_reused();
    for (const PreparedPiece& piece : task->pieces()) {
      result.num_text_bytes += piece.num_text_bytes;
      result.num_empty_documents += piece.num_empty_documents;
      skipped.add(piece.skipped);
      for (const auto& [split, shard] : piece.shards) {
        PreparedSplit& sum = split == "train" ? result.train : result.heldout;
        sum.num_documents += shard.num_documents;
        sum.num_tokens += shard.num_tokens;
        sum.num_answers += shard.mask_hash.empty() ? shard.num_tokens : shard.num_answers;
        manifest.splits[split].push_back(shard);
      }
    }
  }
  result.num_skipped = skipped.count;
  result.skipped_because = skipped.reasons;
  return manifest;
}

void check_result(const PrepareResult& result, const PrepareOptions& options, PrepareFolder& folder) {
  if (result.train.num_documents > 0) return;
  folder.discard();
  if (result.heldout.num_documents > 0) {
    throw Error(ErrorCode::kData, "[prepare] " + std::to_string(result.heldout.num_documents) +
                                      " document(s) and a holdout of " + format_text("%g%%", 100 * options.holdout) +
                                      " leave nothing to train on. Pass more documents, or --holdout 0.");
  }
  throw Error(ErrorCode::kData, "[prepare] empty corpus: got " + std::to_string(result.num_skipped) + " bad records, " +
                                    std::to_string(result.num_empty_documents) +
                                    " empty documents and no others, expected text." +
                                    (result.skipped_because.empty() ? "" : " The first: " + result.skipped_because[0]));
}

}  // namespace

PrepareResult prepare(const PrepareOptions& options, Console& console) {
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const Corpus corpus = find_corpus(options);
  PreparePlan plan = make_plan(options, corpus.num_bytes);
  const std::vector<Files> groups = group_files(corpus.files, plan.shard_bytes);
  PrepareResult result;
  result.threads = num_threads(options);
  result.num_files = static_cast<int64_t>(corpus.files.size());
  result.num_empty_files = corpus.num_empty;

  PrepareFolder folder(options.output, options.overwrite);
  plan.heldout_below = options.holdout_documents > 0
                           ? bound_of_lowest(groups, plan.reading, options.holdout_documents, result.threads)
                           : bound_of_share(options.holdout);
  PrepareProgress progress;
  PreparePool::Tasks tasks(groups.size());
  io::run_workers(groups.size(), result.threads, [&](io::WorkQueue& queue) {  // what is finished is hashed
    while (const auto i = queue.next()) {
      tasks[*i] = std::make_unique<PrepareTask>(static_cast<int64_t>(*i), groups[*i], plan, folder, progress);
    }
  });
  {
    PreparePool pool(tasks, plan, result.threads);
    pool.wait(std::chrono::milliseconds(console.updates_in_place() ? 200 : 5000),
              [&] { console.status(progress_line(progress, corpus.num_bytes, seconds())); });
  }
  io::DatasetManifest manifest = collect(tasks, result);
  check_result(result, options, folder);
  const tokenizer::Tokenizer& tokenizer = plan.encoder.tokenizer();
  if (options.lines == ChatLines::kPairs) manifest.documents = io::Documents::kPairs;
  manifest.tokenizer = tokenizer.name();
  manifest.vocab_size = tokenizer.vocab_size();
  manifest.eos_id = tokenizer.eos().value_or(-1);
  manifest.tokenizer_hash = io::hash_text(tokenizer.hash());
  copy_tokenizer(options.tokenizer, folder.path() / io::kTokenizerFolder);
  folder.publish(manifest);
  result.seconds = seconds();
  return result;
}

}  // namespace fsdp::train
