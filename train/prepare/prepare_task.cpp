#include "train/prepare/prepare_task.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/fault_point.h"
#include "io/base/hash.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr const char* kTrain = "train";
constexpr const char* kHeldout = "heldout";

// The files as they are now: another size or time, and they are read anew.
std::string describe_files(const std::vector<io::InputPart>& files) {
  std::string text;
  for (const io::InputPart& file : files) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(file.path, ignored).time_since_epoch().count();
    text += std::filesystem::absolute(file.path).native() + '\n' + std::to_string(file.num_bytes) + ' ' +
            std::to_string(time) + '\n';
  }
  return text;
}

}  // namespace

std::string PreparePlan::description() const {
  const io::DocumentOptions& documents = reading.documents;
  return encoder.description() + "\nfield " + documents.text_field + "\nseparator " + documents.separator +
         "\nat most " + std::to_string(documents.max_document_bytes) + "\nheld out below " +
         std::to_string(heldout_below) + "\nbytes per shard " + std::to_string(shard_bytes) + "\n";
}

EncodedBatch encode_batch(const PreparePlan& plan, const DocumentBatch& batch) {
  EncodedBatch encoded;
  encoded.piece = batch.piece;
  encoded.skipped = batch.skipped;
  encoded.ends_piece = batch.ends_piece;
  encoded.ends_task = batch.ends_task;
  size_t begin = 0;
  for (const DocumentBatch::Item& item : batch.items) {
    const std::string_view text = std::string_view(batch.text).substr(begin, item.end - begin);
    begin = item.end;
    encoded.num_text_bytes += static_cast<int64_t>(text.size());
    if (text.empty()) {
      ++encoded.num_empty_documents;
      continue;
    }
    std::optional<size_t> second;  // document of a pair
    try {
      second = plan.encoder.encode(text, encoded.ids, encoded.is_answer);
    } catch (const io::Error& error) {
      if (error.kind() != io::ErrorKind::kData) throw;
      const std::string reason = "[prepare] " + io::in_quotes(item.file->path.native()) + ": record " +
                                 std::to_string(item.record) + ": " + error.what();
      if (plan.reading.documents.bad_record == io::BadRecord::kStop) throw io::Error(error.kind(), reason);
      encoded.skipped.add(reason);
      continue;
    }
    if (encoded.ids.size() == (encoded.items.empty() ? 0 : encoded.items.back().end)) {
      ++encoded.num_empty_documents;  // a tokenizer may make nothing of white space
      continue;
    }
    const bool is_heldout = io::hash_bytes(text) < plan.heldout_below;
    if (second) encoded.items.push_back({*second, is_heldout});
    encoded.items.push_back({encoded.ids.size(), is_heldout});
  }
  return encoded;
}

PrepareTask::PrepareTask(int64_t number, std::vector<io::InputPart> files, const PreparePlan& plan,
                         const PrepareFolder& folder, PrepareProgress& progress)
    : number_(number),
      key_(io::hash_text(io::hash_bytes(plan.description() + describe_files(files)))),
      plan_(plan),
      folder_(folder),
      progress_(progress),
      stream_(std::move(files), plan.reading) {
  find_pieces();
}

std::string PrepareTask::piece_name(int64_t piece) const {
  return format_text("%05lld-%05lld", static_cast<long long>(number_), static_cast<long long>(piece));
}

void PrepareTask::find_pieces() {
  const bool may_skip = plan_.reading.documents.bad_record == io::BadRecord::kSkip;
  while (pieces_.empty() || !pieces_.back().is_last) {
    auto piece = folder_.find(piece_name(num_reused_), key_);
    if (!piece || (piece->skipped.count > 0 && !may_skip)) return;
    for (const auto& [split, shard] : piece->shards) progress_.tokens += shard.num_tokens;
    pieces_.push_back(std::move(*piece));
    ++num_reused_;
  }
  is_read_ = true;
  progress_.file_bytes += static_cast<int64_t>(stream_.total_bytes());
  progress_.reused_bytes += static_cast<int64_t>(stream_.total_bytes());
}

void PrepareTask::report_bytes(bool is_new) {
  const uint64_t consumed = stream_.bytes_consumed();
  const auto more = static_cast<int64_t>(consumed - std::min(consumed, reported_bytes_));
  progress_.file_bytes += more;
  if (!is_new) progress_.reused_bytes += more;
  reported_bytes_ = consumed;
}

// Until the batch is full or its piece or the task ends; false for a batch of a piece that is there.
bool PrepareTask::fill(DocumentBatch& batch) {
  batch.piece = piece_;
  const bool is_new = piece_ >= num_reused_;
  io::Document document;
  size_t num_bytes = 0;
  while (num_bytes < kBatchBytes && piece_bytes_ < plan_.shard_bytes) {
    if (!stream_.next(document)) {
      batch.ends_task = true;
      break;
    }
    num_bytes += document.text.size();
    piece_bytes_ += static_cast<int64_t>(document.text.size()) + 1;  // even empty documents come to an end
    if (!is_new) continue;
    batch.text += document.text;
    batch.items.push_back({batch.text.size(), document.record, &stream_.file()});
  }
  batch.ends_piece = batch.ends_task || piece_bytes_ >= plan_.shard_bytes;
  batch.skipped = stream_.take_skipped();
  if (batch.ends_piece) {
    ++piece_;
    piece_bytes_ = 0;
  }
  report_bytes(is_new);
  return is_new;
}

DocumentBatch PrepareTask::read() {
  DocumentBatch batch;
  while (!fill(batch)) batch = {};
  batch.number = next_batch_++;
  is_read_ = batch.ends_task;
  return batch;
}

size_t PrepareTask::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void PrepareTask::write(int64_t number, EncodedBatch batch) {
  std::unique_lock lock(mutex_);
  waiting_.emplace(number, std::move(batch));
  if (is_writing_) return;
  is_writing_ = true;
  for (auto next = waiting_.find(next_written_); next != waiting_.end(); next = waiting_.find(next_written_)) {
    EncodedBatch ready = std::move(next->second);
    waiting_.erase(next);
    ++next_written_;
    lock.unlock();
    append(ready);
    lock.lock();
  }
  is_writing_ = false;
}

io::TokenShardWriter& PrepareTask::writer(const std::string& split) {
  const auto found = writers_.find(split);
  if (found != writers_.end()) return found->second;
  const std::string name = split + "-" + piece_name(static_cast<int64_t>(pieces_.size()));
  const auto mask = plan_.encoder.has_answers() ? io::AnswerMask::kPerToken : io::AnswerMask::kNone;
  return writers_.try_emplace(split, folder_.path() / name, plan_.bytes_per_token, mask).first->second;
}

void PrepareTask::append(EncodedBatch& batch) {
  size_t begin = 0;
  for (const EncodedBatch::Item& item : batch.items) {
    const auto ids = std::span(batch.ids).subspan(begin, item.end - begin);
    const auto answers = batch.is_answer.empty() ? std::span<const uint8_t>()
                                                 : std::span<const uint8_t>(batch.is_answer).subspan(begin, ids.size());
    writer(item.is_heldout ? kHeldout : kTrain).add_document(ids, answers);
    begin = item.end;
  }
  open_piece_.num_text_bytes += batch.num_text_bytes;
  open_piece_.num_empty_documents += batch.num_empty_documents;
  open_piece_.skipped.add(batch.skipped);
  progress_.text_bytes += batch.num_text_bytes;
  progress_.tokens += static_cast<int64_t>(batch.ids.size());
  if (batch.ends_piece) finish_piece(batch.ends_task);
}

void PrepareTask::finish_piece(bool is_last) {
  for (auto& [split, writer] : writers_) open_piece_.shards[split] = writer.commit();
  writers_.clear();
  open_piece_.key = key_;
  open_piece_.is_last = is_last;
  folder_.finish(piece_name(static_cast<int64_t>(pieces_.size())), open_piece_);
  pieces_.push_back(std::exchange(open_piece_, {}));
  fault_point("prepare.piece");
}

}  // namespace fsdp::train
