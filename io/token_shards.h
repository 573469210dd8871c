#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/input_file.h"

namespace fsdp::io {

// The tokenised data set on disk: a folder with `dataset.json` and, per shard, `<name>.bin` (tokens) and `<name>.idx`
// (where documents start). Described byte by byte in docs/data_format.md.

// One shard as the manifest lists it.
struct TokenShardInfo {
  std::string name;  // file name without ".bin" or ".idx"
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  std::string bin_hash;  // XXH3-64 of the whole file, 16 hexadecimal digits
  std::string idx_hash;
};

// The content of `dataset.json`.
struct DatasetManifest {
  std::string tokenizer;  // name or path of the tokenizer that made the tokens
  int64_t vocab_size = 0;
  int64_t eos_id = -1;  // -1: none
  std::map<std::string, std::vector<TokenShardInfo>> splits;
};

// Throws Error(kUsage) for a manifest that could not be read back, Error(kFileSystem) if it cannot be written.
void write_dataset_manifest(const std::filesystem::path& folder, const DatasetManifest& manifest);

// Throws Error(kData) naming the file and the key.
DatasetManifest read_dataset_manifest(const std::filesystem::path& folder);

// Writes one shard, document by document, in bounded memory. Without commit() no file appears. Not thread-safe.
class TokenShardWriter {
 public:
  // `path_stem` is the path without extension, such as "data/train-00000"; `bytes_per_token` is 1, 2 or 4.
  TokenShardWriter(const std::filesystem::path& path_stem, int bytes_per_token);

  // Appends a document of at least one token. Throws Error(kData) for a token that does not fit bytes_per_token.
  void add_document(std::span<const int32_t> tokens);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }

  // Makes both files durable and visible, and returns the line for the manifest.
  TokenShardInfo commit();

 private:
  void flush_tokens();
  void flush_starts();

  int bytes_per_token_;
  AtomicFile bin_;
  AtomicFile idx_;
  std::vector<char> token_bytes_;  // encoded and not yet written
  std::vector<uint64_t> starts_;   // document starts not yet written
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
};

// One split of a data set as one long sequence of tokens, shard after shard. Move-only; const calls are thread-safe and
// read from disk what they return and no more.
class TokenDataset {
 public:
  // Checks the manifest and the headers and sizes of all shards of `split`. Throws Error(kData) naming the file.
  static TokenDataset open(const std::filesystem::path& folder, std::string_view split);

  TokenDataset(TokenDataset&&) noexcept;
  TokenDataset& operator=(TokenDataset&&) noexcept;
  ~TokenDataset();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t eos_id() const { return eos_id_; }  // -1: none
  const std::string& tokenizer() const { return tokenizer_; }

  // Copies tokens [first_token, first_token + n) to `out`. Throws Error(kUsage) if the range leaves the split,
  // Error(kData) for an id that is not below vocab_size().
  void read(int64_t first_token, int64_t n, int32_t* out) const;

  // Positions in [0, n) relative to first_token at which a document starts, in rising order.
  std::vector<int64_t> document_starts(int64_t first_token, int64_t n) const;

  // Reads everything once and compares with the hashes of the manifest. Throws Error(kData) naming the file.
  void verify_hashes() const;

 private:
  struct Shard;
  TokenDataset() = default;
  size_t shard_at(int64_t token) const;
  void check_range(std::string_view op, int64_t first_token, int64_t n) const;

  std::vector<Shard> shards_;  // shards without tokens are left out
  std::string tokenizer_;
  int64_t vocab_size_ = 0;
  int64_t eos_id_ = -1;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
};

}  // namespace fsdp::io
