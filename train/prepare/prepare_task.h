#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/prepare/document_encoder.h"
#include "train/prepare/document_stream.h"
#include "train/prepare/prepare_folder.h"

namespace fsdp::train {

// What all tasks of one `prepare` have in common.
struct PreparePlan {
  ReadOptions reading;
  DocumentEncoder encoder;
  uint64_t heldout_below = 0;  // documents whose hash is lower are held out
  int64_t shard_bytes = 0;     // of text; then the next piece begins
  int bytes_per_token = 4;

  // Text that two runs have in common exactly if they make the same of the same files.
  std::string description() const;
};

// How far all tasks are.
struct PrepareProgress {
  std::atomic<int64_t> file_bytes{0};    // on disk, read
  std::atomic<int64_t> reused_bytes{0};  // of these: read again after an interruption, not encoded again
  std::atomic<int64_t> text_bytes{0};    // encoded
  std::atomic<int64_t> tokens{0};
};

// Some documents in their order, to be encoded by one thread.
struct DocumentBatch {
  struct Item {
    size_t end;  // in `text`
    uint64_t record;
    const io::InputPart* file;
  };
  int64_t number = 0;  // in the task
  int64_t piece = 0;
  std::string text;
  std::vector<Item> items;
  Skipped skipped;  // on the way
  bool ends_piece = false;
  bool ends_task = false;
};

struct EncodedBatch {
  struct Item {
    size_t end;  // in `ids`
    bool is_heldout;
  };
  int64_t piece = 0;
  std::vector<int32_t> ids;
  std::vector<uint8_t> is_answer;
  std::vector<Item> items;
  int64_t num_text_bytes = 0;
  int64_t num_empty_documents = 0;
  Skipped skipped;
  bool ends_piece = false;
  bool ends_task = false;
};

// Thread-safe.
EncodedBatch encode_batch(const PreparePlan& plan, const DocumentBatch& batch);

// Some files, one after another: cut into pieces of about plan.shard_bytes, each of which becomes one shard per split.
// Where the cuts are depends on the documents alone. One thread reads at a time, any number encode, one writes.
class PrepareTask {
 public:
  // Pieces that `folder` has already are not made again. All must outlive it.
  PrepareTask(int64_t number, std::vector<io::InputPart> files, const PreparePlan& plan, const PrepareFolder& folder,
              PrepareProgress& progress);

  bool is_read() const { return is_read_; }
  // The next batch. Not thread-safe; not to be called once is_read(). Pieces that are there are passed over.
  DocumentBatch read();
  // Takes batch `number`; writes those that are next, if no other thread is about to. Thread-safe.
  void write(int64_t number, EncodedBatch batch);
  // Batches that wait for an earlier one.
  size_t num_waiting() const;

  // When all is written.
  const std::vector<PreparedPiece>& pieces() const { return pieces_; }
  int64_t num_reused() const { return num_reused_; }

 private:
  void find_pieces();
  void append(EncodedBatch& batch);
  void finish_piece(bool is_last);
  io::TokenShardWriter& writer(const std::string& split);
  std::string piece_name(int64_t piece) const;
  bool fill(DocumentBatch& batch);
  void report_bytes(bool is_new);

  int64_t number_;
  std::string key_;
  const PreparePlan& plan_;
  const PrepareFolder& folder_;
  PrepareProgress& progress_;

  // Reading.
  DocumentStream stream_;
  int64_t next_batch_ = 0;
  int64_t piece_ = 0;        // of the next document
  int64_t piece_bytes_ = 0;  // of text, in it so far
  uint64_t reported_bytes_ = 0;
  bool is_read_ = false;

  // Writing.
  mutable std::mutex mutex_;
  std::map<int64_t, EncodedBatch> waiting_;
  int64_t next_written_ = 0;
  bool is_writing_ = false;
  std::map<std::string, io::TokenShardWriter> writers_;  // of the present piece
  PreparedPiece open_piece_;
  std::vector<PreparedPiece> pieces_;
  int64_t num_reused_ = 0;
};

}  // namespace fsdp::train
