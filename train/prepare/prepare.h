#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "text/documents/document_reader.h"
#include "train/base/console.h"
#include "train/prepare/document_encoder.h"

namespace fsdp::train {

struct PrepareOptions {
  std::vector<std::string> inputs;  // files, folders, globs (io::find_inputs)
  std::filesystem::path output;
  std::vector<std::string> extensions;  // of files below folders; empty: all
  std::string tokenizer = "bytes";      // or a folder with tokenizer.json
  io::DocumentOptions documents;
  std::string chat;  // how conversations are written: a chat::Format or "auto"; "": the inputs are text
  ChatLines lines = ChatLines::kConversations;  // of chats; kPairs: two documents each, chosen and rejected
  double holdout = 0.05;                        // share of the documents, by a hash of their content, that is held out
  int64_t holdout_documents = 0;                // > 0: this many instead, those with the lowest hashes
  int threads = 0;                              // 0: one per core
  bool overwrite = false;                       // an older data set
  int64_t shard_bytes = 0;                      // of text per shard; 0: by the amount of input, 1 MiB to 1 GiB
};

// What came of the documents of one split.
struct PreparedSplit {
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  int64_t num_answers = 0;  // tokens that may be learned; all where there is no chat
};

struct PrepareResult {
  int64_t num_files = 0;
  int64_t num_empty_files = 0;
  int64_t num_text_bytes = 0;  // of all documents, after decompression
  PreparedSplit train;
  PreparedSplit heldout;
  int64_t num_empty_documents = 0;           // left out
  int64_t num_skipped = 0;                   // bad records
  std::vector<std::string> skipped_because;  // of the first of them
  int64_t num_reused_shards = 0;             // finished by an earlier run that was interrupted
  int threads = 1;
  double seconds = 0;
};

// Turns documents into a data set (docs/data_format.md) with the splits "train" and, if anything is held out,
// "heldout". A document becomes the tokenizer's begin token where it has a template with one, its tokens, and the end
// token; a conversation what chat::render() makes of it, with the mask of its answers. The result depends on the files
// and options alone, not on the number of threads or on interruptions. The folder appears complete or not at all; what
// is finished stays in a hidden folder beside it, and the same call goes on from there. Throws Error(kUsage | kData |
// kFileSystem) or io::Error.
PrepareResult prepare(const PrepareOptions& options, Console& console);

}  // namespace fsdp::train
