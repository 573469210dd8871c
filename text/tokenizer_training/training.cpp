#include "text/tokenizer_training/training.h"

#include <utility>

namespace fsdp::tokenizer_training {
namespace {

// One file's documents to the counter.
void count_file(const io::InputPart& file, const TrainingOptions& options,
                const std::function<void(uint64_t)>& progress, WordCounter& counter, TrainingResult& result) {
  const auto reader = io::DocumentReader::open(file.path, options.documents);
  io::Document document;
  while (reader->next(document)) {
    ++result.num_documents;
    result.num_bytes += document.text.size();
    counter.add(document.text);
    progress(reader->bytes_consumed());
  }
  result.num_skipped += reader->num_skipped();
  ++result.num_files;
}

WordCounts count_words(const TrainingOptions& options, const std::function<void(const Progress&)>& progress,
                       TrainingResult& result) {
  WordCounter counter(pre_tokenizer_of(options.tokenizer.pattern), options.words);
  const std::vector<io::InputPart> files = io::find_inputs(options.inputs, io::document_extensions());
  Progress state{Progress::Stage::kCounting, 0, 0};
  for (const io::InputPart& file : files) state.total += file.num_bytes;
  uint64_t before = 0;
  for (const io::InputPart& file : files) {
    const auto show = [&](uint64_t bytes) {
      state.done = before + bytes;
      progress(state);
    };
    count_file(file, options, show, counter, result);
    before += file.num_bytes;
  }
  WordCounts words = counter.finish();
  result.num_words = words.size();
  result.num_forgotten = counter.num_forgotten();
  result.num_long = counter.num_long();
  return words;
}

}  // namespace

TrainingResult train_tokenizer(const TrainingOptions& options, const std::function<void(const Progress&)>& progress) {
  const BpeOptions bpe{options.vocab_size, options.min_frequency, options.tokenizer.special_tokens};
  check_bpe_options(bpe);
  TrainingResult result;
  const WordCounts words = count_words(options, progress, result);
  const auto total = static_cast<uint64_t>(options.vocab_size);
  result.model = train_bpe(words, bpe, [&](int64_t tokens) {
    progress({Progress::Stage::kMerging, static_cast<uint64_t>(tokens), total});
  });
  return result;
}

}  // namespace fsdp::tokenizer_training
