#include "text/tokenizer_training/word_counter.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "io/base/worker_threads.h"

namespace fsdp::tokenizer_training {
namespace {

class TableSink : public tokenizer::WordSink {
 public:
  TableSink(WordTable& table, uint64_t max_bytes) : table_(table), max_bytes_(max_bytes) {}

  void take(std::string_view word) override {
    if (word.size() <= max_bytes_) {
      table_.add(word);
    } else {
      ++num_long_;
    }
  }
  uint64_t num_long() const { return num_long_; }

 private:
  WordTable& table_;
  uint64_t max_bytes_;
  uint64_t num_long_ = 0;
};

}  // namespace

size_t WordTable::size() const {
  size_t size = 0;
  for (const WordCounts& part : parts_) size += part.size();
  return size;
}

size_t WordTable::num_bytes() const {
  size_t bytes = 0;
  for (const WordCounts& part : parts_) bytes += part.num_bytes();
  return bytes;
}

WordCounter::WordCounter(tokenizer::PreTokenizer pre_tokenizer, const Options& options)
    : pre_tokenizer_(std::move(pre_tokenizer)), options_(options) {
  if (options_.threads <= 0) {
    options_.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
}

void WordCounter::add(std::string_view document) {
  if (document.empty()) {
    return;
  }
  batch_.emplace_back(document);
  bytes_in_batch_ += document.size();
  if (bytes_in_batch_ >= options_.batch_bytes) {
    count_batch();
  }
}

WordCounts WordCounter::finish() {
  count_batch();
  WordCounts all;
  for (size_t part = 0; part < WordTable::kNumParts; ++part) {
    all.add(std::exchange(words_.part(part), {}));
  }
  return all;
}

void WordCounter::count_documents(std::vector<WordTable>& tables) {
  std::atomic<size_t> next_table{0};
  std::atomic<uint64_t> num_long{0};
  io::run_workers(batch_.size(), options_.threads, [&](io::WorkQueue& queue) {
    TableSink sink(tables[next_table++], options_.max_word_bytes);
    while (const auto document = queue.next()) {
      pre_tokenizer_.split(batch_[*document], true, sink);
    }
    num_long += sink.num_long();
  });
  num_long_ += num_long;
}

void WordCounter::count_batch() {
  if (batch_.empty()) {
    return;
  }
  std::vector<WordTable> tables(static_cast<size_t>(options_.threads));
  count_documents(tables);
  io::run_workers(WordTable::kNumParts, options_.threads, [&](io::WorkQueue& queue) {
    while (const auto part = queue.next()) {
      for (WordTable& table : tables) {
        words_.part(*part).add(table.part(*part));
      }
    }
  });
  batch_.clear();
  bytes_in_batch_ = 0;
  forget_rare();
}

// To half of what is allowed, so that it happens rarely.
void WordCounter::forget_rare() {
  if (words_.num_bytes() <= options_.max_bytes) {
    return;
  }
  for (uint64_t count = 2; words_.num_bytes() > options_.max_bytes / 2; count *= 2) {
    for (size_t part = 0; part < WordTable::kNumParts; ++part) {
      num_forgotten_ += words_.part(part).drop_below(count);
    }
  }
}

}  // namespace fsdp::tokenizer_training
