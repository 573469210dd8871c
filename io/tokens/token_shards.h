#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/atomic_file.h"
#include "io/base/input_file.h"

namespace fsdp::io {

// The tokenised data set on disk: a folder with `dataset.json` and, per shard, `<name>.bin` (tokens), `<name>.idx`
// (where documents start) and, for conversations, `<name>.msk` (which tokens are answers). Described byte by byte in
// docs/data_format.md.

// One shard as the manifest lists it.
struct TokenShardInfo {
  std::string name;  // file name without ".bin", ".idx" or ".msk"
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  std::string bin_hash;  // XXH3-64 of the whole file, 16 hexadecimal digits
  std::string idx_hash;
  std::string mask_hash{};  // "": no mask, every token may be learned
  int64_t num_answers = 0;  // tokens that the mask names answers
};

inline constexpr const char* kTokenizerFolder = "tokenizer";  // of a data set: copies of the tokenizer's files

// What the documents of a data set are: one each, or two by two a chosen and a rejected answer to one prompt.
enum class Documents { kSingle, kPairs };

// The content of `dataset.json`.
struct DatasetManifest {
  std::string tokenizer;  // name or path of the tokenizer that made the tokens
  int64_t vocab_size = 0;
  int64_t eos_id = -1;  // -1: none
  std::map<std::string, std::vector<TokenShardInfo>> splits;
  std::string tokenizer_hash{};  // of its files, 16 hexadecimal digits; "": unknown
  Documents documents = Documents::kSingle;
};

// Throws Error(kUsage) for a manifest that could not be read back, Error(kFileSystem) if it cannot be written.
void write_dataset_manifest(const std::filesystem::path& folder, const DatasetManifest& manifest);

// Throws Error(kData) naming the file and the key.
DatasetManifest read_dataset_manifest(const std::filesystem::path& folder);

enum class AnswerMask { kNone, kPerToken };

// Writes one shard, document by document, in bounded memory. Without commit() no file appears. Not thread-safe.
class TokenShardWriter {
 public:
  // `path_stem` is the path without extension, such as "data/train-00000"; `bytes_per_token` is 1, 2 or 4.
  TokenShardWriter(const std::filesystem::path& path_stem, int bytes_per_token, AnswerMask mask = AnswerMask::kNone);

  // Appends a document of at least one token; `is_answer` has 0 or 1 for each of them where there is a mask, and is
  // empty where there is none. Throws Error(kData) for a token that does not fit bytes_per_token.
  void add_document(std::span<const int32_t> tokens, std::span<const uint8_t> is_answer = {});

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }

  // Makes the files durable and visible, and returns the line for the manifest.
  TokenShardInfo commit();

 private:
  void check_document(std::span<const int32_t> tokens, std::span<const uint8_t> is_answer) const;
  void flush();

  int bytes_per_token_;
  AtomicFile bin_;
  AtomicFile idx_;
  std::optional<AtomicFile> mask_;
  std::vector<char> token_bytes_;  // encoded and not yet written
  std::vector<uint64_t> starts_;   // document starts not yet written
  std::vector<uint8_t> answers_;   // mask not yet written
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_answers_ = 0;
};

// One split of a data set as one long sequence of tokens, shard after shard. Move-only; const calls are thread-safe and
// read from disk what they return and little more. Memory and time to open depend on the number of shards (some 300
// bytes and 50 us each), not on what they hold.
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
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }  // "": unknown
  const std::filesystem::path& folder() const { return folder_; }
  // Does any shard tell answers from the rest? Then num_answers() tokens of the split are some.
  bool has_mask() const { return has_mask_; }
  Documents documents() const { return documents_; }
  int64_t num_answers() const { return num_answers_; }

  // Copies tokens [first_token, first_token + n) to `out`. Throws Error(kUsage) if the range leaves the split,
  // Error(kData) for an id that is not below vocab_size().
  void read(int64_t first_token, int64_t n, int32_t* out) const;

  // Positions in [0, n) relative to first_token at which a document starts, in rising order.
  std::vector<int64_t> document_starts(int64_t first_token, int64_t n) const;

  // For tokens [first_token, first_token + n): 1 where a model may learn to produce the token, 0 where not. All 1 in
  // shards without a mask.
  void read_mask(int64_t first_token, int64_t n, uint8_t* out) const;

  // Reads everything once and compares with the hashes of the manifest. Throws Error(kData) naming the file.
  void verify_hashes() const;

 private:
  struct Shard;
  TokenDataset() = default;
  size_t shard_at(int64_t token) const;
  void check_range(std::string_view op, int64_t first_token, int64_t n) const;

  std::vector<Shard> shards_;  // shards without tokens are left out
  std::filesystem::path folder_;
  std::string tokenizer_;
  std::string tokenizer_hash_;
  int64_t vocab_size_ = 0;
  int64_t eos_id_ = -1;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_answers_ = 0;
  bool has_mask_ = false;
  Documents documents_ = Documents::kSingle;
};

}  // namespace fsdp::io
