#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "io/base/hash.h"
#include "io/base/pooled_file.h"
#include "io/tokens/token_shard_header.h"
#include "io/tokens/token_shards.h"

namespace fsdp::io {

namespace {

constexpr int64_t kPieceTokens = 1 << 14;  // tokens converted at a time; bounds the extra memory of a read
constexpr int64_t kPieceStarts = 512;

void check_header(const InputFile& file, const TokenShardInfo& info, const std::array<char, 8>& magic,
                  TokenShardHeader* header) {
  if (file.size() < sizeof(*header)) {
    throw file.error("dataset", "got " + std::to_string(file.size()) +
                                    " bytes, expected at least 64. The file is truncated or no token shard.");
  }
  file.read_at(0, header, sizeof(*header));
  if (header->magic != magic) {
    throw file.error("dataset", "got the magic " + in_quotes({header->magic.data(), header->magic.size()}) +
                                    " at offset 0, expected " + in_quotes({magic.data(), magic.size()}) +
                                    ". The file is damaged or no token shard.");
  }
  const auto expected_tokens = static_cast<uint64_t>(info.num_tokens);
  const auto expected_documents = static_cast<uint64_t>(info.num_documents);
  if (header->num_tokens != expected_tokens || header->num_documents != expected_documents) {
    throw file.error("dataset", "got " + std::to_string(header->num_tokens) + " tokens and " +
                                    std::to_string(header->num_documents) + " documents at offset 16, expected " +
                                    std::to_string(expected_tokens) + " and " + std::to_string(expected_documents) +
                                    " as in dataset.json. Prepare the data again.");
  }
  const bool zero = std::all_of(header->zero.begin(), header->zero.end(), [](char c) { return c == 0; });
  if (header->version != kTokenShardVersion || !zero) {
    throw file.error("dataset", "got version " + std::to_string(header->version) +
                                    " or reserved bytes in use, expected version 1 and zeros. Prepare the data again.");
  }
}

void check_item_bytes(const InputFile& file, const TokenShardHeader& header, uint32_t expected, const char* item) {
  if (header.item_bytes == expected) return;
  throw file.error("dataset", "got " + std::to_string(header.item_bytes) + " bytes per " + item +
                                  " at offset 12, expected " + std::to_string(expected) + ". The file is damaged.");
}

// The file must be exactly its header and `count` items.
void check_size(const InputFile& file, uint64_t count, uint64_t item_bytes) {
  uint64_t expected = 0;
  if (__builtin_mul_overflow(count, item_bytes, &expected) ||
      __builtin_add_overflow(expected, sizeof(TokenShardHeader), &expected) || expected != file.size()) {
    throw file.error("dataset", "got " + std::to_string(file.size()) + " bytes, expected 64 + " +
                                    std::to_string(count) + " * " + std::to_string(item_bytes) +
                                    ". The file is truncated or damaged.");
  }
}

void widen(const char* bytes, uint32_t item_bytes, int64_t n, int32_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes + i * item_bytes, item_bytes);
    out[i] = static_cast<int32_t>(id);
  }
}

}  // namespace

// One shard and its place in the split.
struct TokenDataset::Shard {
  PooledFile bin;
  PooledFile idx;
  std::optional<PooledFile> mask;
  int64_t first_token;  // of this shard, counted from the start of the split
  int64_t num_tokens;
  int64_t num_documents;
  uint32_t bytes_per_token;
  TokenShardInfo info;

  static Shard open(const std::filesystem::path& folder, const TokenShardInfo& info, int64_t first_token);
  void check_bin();
  void check_idx() const;
  void check_mask() const;
  void read(int64_t first, int64_t n, int64_t vocab_size, int32_t* out) const;
  void read_mask(int64_t first, int64_t n, uint8_t* out) const;
  int64_t first_document_from(const InputFile& file, int64_t token) const;
  void append_starts(int64_t first, int64_t n, int64_t shift, std::vector<int64_t>* out) const;
  void read_starts(const InputFile& file, int64_t first_document, int64_t n, uint64_t* out) const;
};

TokenDataset::Shard TokenDataset::Shard::open(const std::filesystem::path& folder, const TokenShardInfo& info,
                                              int64_t first_token) {
  Shard shard{.bin = PooledFile(folder / (info.name + ".bin"), ErrorKind::kData),
              .idx = PooledFile(folder / (info.name + ".idx"), ErrorKind::kData),
              .mask = {},
              .first_token = first_token,
              .num_tokens = info.num_tokens,
              .num_documents = info.num_documents,
              .bytes_per_token = 0,
              .info = info};
  shard.check_bin();
  shard.check_idx();
  if (!info.mask_hash.empty()) {
    shard.mask.emplace(folder / (info.name + ".msk"), ErrorKind::kData);
    shard.check_mask();
  }
  return shard;
}

void TokenDataset::Shard::check_bin() {
  const auto file = bin.open();
  TokenShardHeader header = {};
  check_header(*file, info, kTokensMagic, &header);
  if (header.item_bytes != 1 && header.item_bytes != 2 && header.item_bytes != 4) {
    throw file->error("dataset", "got " + std::to_string(header.item_bytes) +
                                     " bytes per token at offset 12, expected 1, 2 or 4. The file is damaged.");
  }
  bytes_per_token = header.item_bytes;
  check_size(*file, header.num_tokens, header.item_bytes);
}

void TokenDataset::Shard::check_idx() const {
  const auto file = idx.open();
  TokenShardHeader header = {};
  check_header(*file, info, kIndexMagic, &header);
  check_item_bytes(*file, header, kIndexItemBytes, "offset");
  check_size(*file, header.num_documents, kIndexItemBytes);
  if ((num_tokens == 0) != (num_documents == 0) || num_documents > num_tokens) {
    throw file->error("dataset", "got " + std::to_string(num_documents) + " documents for " +
                                     std::to_string(num_tokens) + " tokens, expected 1 to that many.");
  }
  uint64_t first = 0;
  if (num_documents > 0) read_starts(*file, 0, 1, &first);
  if (first != 0) {
    throw file->error("dataset", "got the first document at token " + std::to_string(first) +
                                     ", expected 0 at offset 64. The file is damaged.");
  }
}

void TokenDataset::Shard::check_mask() const {
  const auto file = mask->open();
  TokenShardHeader header = {};
  check_header(*file, info, kMaskMagic, &header);
  check_item_bytes(*file, header, kMaskItemBytes, "token");
  check_size(*file, header.num_tokens, kMaskItemBytes);
}

// `first` counts from the start of the shard.
void TokenDataset::Shard::read(int64_t first, int64_t n, int64_t vocab_size, int32_t* out) const {
  const auto file = bin.open();
  std::vector<char> piece(static_cast<size_t>(std::min(n, kPieceTokens)) * bytes_per_token);
  for (int64_t done = 0; done < n; done += kPieceTokens) {
    const int64_t count = std::min(n - done, kPieceTokens);
    const uint64_t offset = sizeof(TokenShardHeader) + static_cast<uint64_t>(first + done) * bytes_per_token;
    file->read_at(offset, piece.data(), static_cast<size_t>(count) * bytes_per_token);
    int32_t* ids = out + done;
    widen(piece.data(), bytes_per_token, count, ids);
    const int32_t* bad = std::find_if(ids, ids + count, [&](int32_t id) { return id < 0 || id >= vocab_size; });
    if (bad != ids + count) {
      throw file->error("dataset", "got token id " + std::to_string(static_cast<uint32_t>(*bad)) + " at offset " +
                                       std::to_string(offset + static_cast<uint64_t>(bad - ids) * bytes_per_token) +
                                       ", expected less than vocab_size " + std::to_string(vocab_size) +
                                       ". The file is damaged or belongs to another tokenizer.");
    }
  }
}

// `first` counts from the start of the shard.
void TokenDataset::Shard::read_mask(int64_t first, int64_t n, uint8_t* out) const {
  if (!mask) {
    std::fill_n(out, n, uint8_t{1});
    return;
  }
  const auto file = mask->open();
  const uint64_t offset = sizeof(TokenShardHeader) + static_cast<uint64_t>(first);
  file->read_at(offset, out, static_cast<size_t>(n));
  const uint8_t* bad = std::find_if(out, out + n, [](uint8_t answer) { return answer > 1; });
  if (bad != out + n) {
    throw file->error("dataset", "got " + std::to_string(*bad) + " at offset " +
                                     std::to_string(offset + static_cast<uint64_t>(bad - out)) +
                                     ", expected 0 or 1. The file is damaged.");
  }
}

void TokenDataset::Shard::read_starts(const InputFile& file, int64_t first_document, int64_t n, uint64_t* out) const {
  const uint64_t offset = sizeof(TokenShardHeader) + static_cast<uint64_t>(first_document) * kIndexItemBytes;
  file.read_at(offset, out, static_cast<size_t>(n) * kIndexItemBytes);
  for (int64_t i = 0; i < n; ++i) {
    if (out[i] < static_cast<uint64_t>(num_tokens) && (i == 0 || out[i] > out[i - 1])) continue;
    throw file.error("dataset", "got document start " + std::to_string(out[i]) + " at offset " +
                                    std::to_string(offset + static_cast<uint64_t>(i) * kIndexItemBytes) +
                                    ", expected rising numbers below " + std::to_string(num_tokens) +
                                    ". The file is damaged.");
  }
}

// Index of the first document that starts at `token` or later. A search on disk that reads a page where the document
// would be if all were equally long: one page or two where they are not too different. Every third page is the middle
// one of what is left, which bounds the number of pages whatever the lengths are.
int64_t TokenDataset::Shard::first_document_from(const InputFile& file, int64_t token) const {
  const auto wanted = static_cast<uint64_t>(token);
  std::array<uint64_t, kPieceStarts> starts;
  int64_t low = 0;  // documents before start before `token`
  int64_t high = num_documents;
  uint64_t low_start = 0;
  auto high_start = static_cast<uint64_t>(num_tokens);
  for (int page = 1; low < high; ++page) {
    const double share = page % 3 == 0 || wanted <= low_start || high_start <= low_start
                             ? 0.5
                             : static_cast<double>(wanted - low_start) / static_cast<double>(high_start - low_start);
    const auto guess = low + static_cast<int64_t>(std::min(share, 1.0) * static_cast<double>(high - low));
    const int64_t first = std::clamp(guess - kPieceStarts / 2, low, std::max(low, high - kPieceStarts));
    const int64_t count = std::min(high - first, kPieceStarts);
    read_starts(file, first, count, starts.data());
    uint64_t* const end = starts.data() + count;
    uint64_t* const found = std::lower_bound(starts.data(), end, wanted);
    if (found == end) {
      low = first + count;
      low_start = end[-1];
    } else if (found == starts.data()) {
      high = first;
      high_start = *found;
    } else {
      return first + (found - starts.data());
    }
  }
  return low;
}

// Adds `shift` + the starts inside [first, first + n), relative to `first`.
void TokenDataset::Shard::append_starts(int64_t first, int64_t n, int64_t shift, std::vector<int64_t>* out) const {
  const auto file = idx.open();
  std::array<uint64_t, kPieceStarts> starts;
  for (int64_t document = first_document_from(*file, first); document < num_documents; document += kPieceStarts) {
    const int64_t count = std::min(num_documents - document, kPieceStarts);
    read_starts(*file, document, count, starts.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto start = static_cast<int64_t>(starts[static_cast<size_t>(i)]);
      if (start >= first + n) return;
      if (start < first) {
        throw file->error("dataset", "got document start " + std::to_string(start) + " after one from " +
                                         std::to_string(first) + ", expected rising numbers. The file is damaged.");
      }
      out->push_back(shift + start - first);
    }
  }
}

TokenDataset::TokenDataset(TokenDataset&&) noexcept = default;
TokenDataset& TokenDataset::operator=(TokenDataset&&) noexcept = default;
TokenDataset::~TokenDataset() = default;

TokenDataset TokenDataset::open(const std::filesystem::path& folder, std::string_view split) {
  const DatasetManifest manifest = read_dataset_manifest(folder);
  const auto found = manifest.splits.find(std::string(split));
  if (found == manifest.splits.end()) {
    std::string known;
    for (const auto& [name, shards] : manifest.splits) known += (known.empty() ? "" : ", ") + in_quotes(name);
    throw Error(ErrorKind::kData, "[dataset] " + in_quotes(folder.native()) + ": got no split " + in_quotes(split) +
                                      ", expected one of: " + known + ".");
  }
  TokenDataset dataset;
  dataset.folder_ = folder;
  dataset.tokenizer_ = manifest.tokenizer;
  dataset.tokenizer_hash_ = manifest.tokenizer_hash;
  dataset.vocab_size_ = manifest.vocab_size;
  dataset.eos_id_ = manifest.eos_id;
  dataset.documents_ = manifest.documents;
  for (const TokenShardInfo& info : found->second) {
    Shard shard = Shard::open(folder, info, dataset.num_tokens_);
    dataset.num_tokens_ += info.num_tokens;  // cannot overflow: each was compared with the size of its file
    dataset.num_documents_ += info.num_documents;
    dataset.num_answers_ += info.mask_hash.empty() ? info.num_tokens : info.num_answers;
    dataset.has_mask_ = dataset.has_mask_ || !info.mask_hash.empty();
    if (info.num_tokens > 0) dataset.shards_.push_back(std::move(shard));
  }
  return dataset;
}

size_t TokenDataset::shard_at(int64_t token) const {
  const auto after = std::upper_bound(shards_.begin(), shards_.end(), token,
                                      [](int64_t value, const Shard& shard) { return value < shard.first_token; });
  return static_cast<size_t>(after - shards_.begin()) - 1;
}

void TokenDataset::check_range(std::string_view op, int64_t first_token, int64_t n) const {
  if (first_token >= 0 && n >= 0 && first_token <= num_tokens_ && n <= num_tokens_ - first_token) return;
  throw Error(ErrorKind::kUsage, "[" + std::string(op) + "] got tokens " + std::to_string(first_token) + " + " +
                                     std::to_string(n) + ", expected a range inside the " +
                                     std::to_string(num_tokens_) + " tokens of the split.");
}

void TokenDataset::read(int64_t first_token, int64_t n, int32_t* out) const {
  check_range("read", first_token, n);
  while (n > 0) {
    const Shard& shard = shards_[shard_at(first_token)];
    const int64_t first = first_token - shard.first_token;
    const int64_t count = std::min(n, shard.num_tokens - first);
    shard.read(first, count, vocab_size_, out);
    first_token += count;
    out += count;
    n -= count;
  }
}

void TokenDataset::read_mask(int64_t first_token, int64_t n, uint8_t* out) const {
  check_range("read_mask", first_token, n);
  while (n > 0) {
    const Shard& shard = shards_[shard_at(first_token)];
    const int64_t first = first_token - shard.first_token;
    const int64_t count = std::min(n, shard.num_tokens - first);
    shard.read_mask(first, count, out);
    first_token += count;
    out += count;
    n -= count;
  }
}

std::vector<int64_t> TokenDataset::document_starts(int64_t first_token, int64_t n) const {
  check_range("document_starts", first_token, n);
  std::vector<int64_t> starts;
  int64_t done = 0;
  while (done < n) {
    const Shard& shard = shards_[shard_at(first_token + done)];
    const int64_t first = first_token + done - shard.first_token;
    const int64_t count = std::min(n - done, shard.num_tokens - first);
    shard.append_starts(first, count, done, &starts);
    done += count;
  }
  return starts;
}

void TokenDataset::verify_hashes() const {
  const auto verify = [](const PooledFile& file, const std::string& expected) {
    const std::string got = hash_text(hash_file(file.path()));
    if (got == expected) return;
    throw file.open()->error("dataset", "got XXH3-64 " + got + ", expected " + in_quotes(expected) +
                                            " as in dataset.json. The file is damaged; prepare the data again.");
  };
  for (const Shard& shard : shards_) {
    verify(shard.bin, shard.info.bin_hash);
    verify(shard.idx, shard.info.idx_hash);
    if (shard.mask) verify(*shard.mask, shard.info.mask_hash);
  }
}

}  // namespace fsdp::io
