#include "train/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/token_shards.h"
#include "train/byte_tokenizer.h"
#include "train/corpus.h"
#include "train/format.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A run of files that becomes one shard; one thread writes it.
struct ShardPlan {
  std::string split;
  std::string name;
  size_t first_file = 0;
  size_t last_file = 0;  // one past
  io::TokenShardInfo info;
};

// Cuts [first, last) of the corpus into shards of about 1/64 of the corpus, but not below 1 MiB nor above 1 GiB.
void plan_split(const Corpus& corpus, const std::string& split, size_t first, size_t last,
                std::vector<ShardPlan>& plans) {
  const int64_t target = std::clamp(corpus.num_bytes / 64, kMiB, kGiB);
  int number = 0;
  while (first < last) {
    ShardPlan plan{split, format_text("%s-%05d", split.c_str(), number++), first, first, {}};
    for (int64_t bytes = 0; plan.last_file < last && bytes < target; ++plan.last_file) {
      bytes += corpus.files[plan.last_file].num_bytes;
    }
    first = plan.last_file;
    plans.push_back(std::move(plan));
  }
}

size_t heldout_files(size_t num_files, double share) {
  const auto count = static_cast<size_t>(std::lround(share * static_cast<double>(num_files)));
  return share > 0 ? std::clamp<size_t>(count, 1, num_files) : 0;
}

std::string read_whole(const CorpusFile& file) {
  std::ifstream stream(file.path, std::ios::binary);
  std::string bytes(static_cast<size_t>(file.num_bytes), '\0');
  stream.read(bytes.data(), file.num_bytes);
  if (!stream.is_open() || stream.gcount() != file.num_bytes) {
    throw Error(ErrorCode::kFileSystem,
                "[prepare] " + file.path.string() +
                    (stream.is_open() ? ": became shorter while it was read. Run again."
                                      : ": cannot be read. Make it readable, or leave it out."));
  }
  return bytes;
}

// The folder under its temporary name; gone unless published.
class StagingFolder {
 public:
  StagingFolder(fs::path target, bool overwrite) : target_(fs::absolute(target).lexically_normal()) {
    if (!target_.has_filename()) {
      target_ = target_.parent_path();
    }
    if (fs::exists(target_) && !overwrite) {
      throw Error(ErrorCode::kUsage, "[prepare] " + target.string() +
                                         ": exists already. Pass --overwrite to replace it, or another --output.");
    }
    std::error_code error;
    fs::create_directories(target_.parent_path(), error);
    staging_ = target_.parent_path() / ("." + target_.filename().string() + ".tmp-" + std::to_string(getpid()));
    if (error || !fs::create_directory(staging_, error)) {
      throw Error(ErrorCode::kFileSystem, "[prepare] " + target.string() + ": cannot be created: " + error.message() +
                                              ". Choose an --output in a folder you may write to.");
    }
  }
  ~StagingFolder() {
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const fs::path& path() const { return staging_; }

  void publish() {
    const fs::path old = staging_.string() + "-old";
    if (fs::exists(target_)) {
      fs::rename(target_, old);
    }
    fs::rename(staging_, target_);
    fs::remove_all(old);
  }

 private:
  fs::path target_;
  fs::path staging_;
};

// Threads that take shard after shard; the caller's thread shows how far they are.
class Workers {
 public:
  Workers(const Corpus& corpus, std::vector<ShardPlan>& plans, const PrepareOptions& options, fs::path folder)
      : corpus_(corpus), plans_(plans), max_document_bytes_(options.max_document_bytes), folder_(std::move(folder)) {
    const unsigned wanted =
        options.threads > 0 ? static_cast<unsigned>(options.threads) : std::thread::hardware_concurrency();
    running_ = static_cast<int>(std::clamp<size_t>(wanted, 1, plans_.size()));
    for (int thread = running_; thread > 0; --thread) {
      threads_.emplace_back([this] { work(); });
    }
  }

  void wait(Console& console) {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    const auto period = console.updates_in_place() ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000);
    while (!idle_.wait_for(lock, period, [this] { return running_ == 0; })) {
      console.status(progress(std::chrono::duration<double>(Clock::now() - begin).count()));
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

  int64_t num_tokens() const { return num_tokens_; }

 private:
  void work() {
    try {
      for (size_t shard = next_++; shard < plans_.size() && !stop_; shard = next_++) {
        write_shard(plans_[shard]);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = failure_ ? failure_ : std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    idle_.notify_all();
  }

  void write_shard(ShardPlan& plan) {
    io::TokenShardWriter writer(folder_ / plan.name, 2);
    std::vector<int32_t> tokens;
    for (size_t file = plan.first_file; file < plan.last_file && !stop_; ++file) {
      const std::string bytes = read_whole(corpus_.files[file]);
      for (size_t begin = 0; begin < bytes.size(); begin += static_cast<size_t>(max_document_bytes_)) {
        const size_t end = std::min(bytes.size(), begin + static_cast<size_t>(max_document_bytes_));
        tokens.assign(1, byte_tokenizer::kBegin);
        for (size_t i = begin; i < end; ++i) {
          tokens.push_back(static_cast<unsigned char>(bytes[i]));
        }
        tokens.push_back(byte_tokenizer::kEnd);
        writer.add_document(tokens);
      }
      done_bytes_ += static_cast<int64_t>(bytes.size());
    }
    num_tokens_ += writer.num_tokens();
    plan.info = writer.commit();
  }

  std::string progress(double seconds) const {
    const auto done = static_cast<double>(done_bytes_);
    const auto total = static_cast<double>(corpus_.num_bytes);
    const double rate = done / std::max(seconds, 1e-9);
    std::string bar(20, '.');
    std::fill_n(bar.begin(), static_cast<size_t>(20 * done / total), '#');
    return format_text("prepare [%s] %3.0f%% | %.1f of %.1f MB | %.1f MB/s | eta %s", bar.c_str(), 100 * done / total,
                       done / 1e6, total / 1e6, rate / 1e6, clock_text((total - done) / std::max(rate, 1.0)).c_str());
  }

  const Corpus& corpus_;
  std::vector<ShardPlan>& plans_;
  int64_t max_document_bytes_;
  fs::path folder_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_bytes_{0};
  std::atomic<int64_t> num_tokens_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace

PrepareResult prepare(const PrepareOptions& options, Console& console) {
  const auto begin = Clock::now();
  const Corpus corpus = find_corpus(options.inputs, options.extensions);
  const size_t num_files = corpus.files.size();
  const size_t num_heldout = heldout_files(num_files, options.holdout);
  if (num_heldout == num_files) {
    throw Error(ErrorCode::kData, "[prepare] " + std::to_string(num_files) + " file(s) and a holdout of " +
                                      format_text("%g%%", 100 * options.holdout) +
                                      " leave nothing to train on. Pass more files, or --holdout 0.");
  }
  std::vector<ShardPlan> plans;
  plan_split(corpus, "train", 0, num_files - num_heldout, plans);
  plan_split(corpus, "heldout", num_files - num_heldout, num_files, plans);

  StagingFolder staging(options.output, options.overwrite);
  Workers workers(corpus, plans, options, staging.path());
  workers.wait(console);

  io::DatasetManifest manifest{byte_tokenizer::kName, byte_tokenizer::kVocabSize, byte_tokenizer::kEnd, {}};
  for (const ShardPlan& plan : plans) {
    manifest.splits[plan.split].push_back(plan.info);
  }
  io::write_dataset_manifest(staging.path(), manifest);
  staging.publish();

  PrepareResult result;
  result.num_files = static_cast<int64_t>(num_files);
  result.num_heldout_files = static_cast<int64_t>(num_heldout);
  result.num_empty_files = corpus.num_empty;
  result.num_bytes = corpus.num_bytes;
  result.num_tokens = workers.num_tokens();
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace fsdp::train
