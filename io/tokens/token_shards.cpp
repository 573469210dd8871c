#include "io/tokens/token_shards.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/tokens/token_shard_header.h"

namespace fsdp::io {

namespace {

constexpr const char* kDatasetManifestName = "dataset.json";
constexpr int kManifestVersion = 1;
constexpr int kMaskedManifestVersion = 2;  // a reader that knows no masks would learn what it must not
constexpr size_t kFlushBytes = size_t{1} << 20;

std::filesystem::path with_suffix(std::filesystem::path stem, const char* suffix) { return stem += suffix; }

Error dataset_error(const std::filesystem::path& path, const std::string& detail) {
  return Error(ErrorKind::kUsage, "[dataset] " + in_quotes(path.native()) + ": " + detail);
}

// Reads typed members of the manifest; every mismatch names file and key.
class ManifestReader {
 public:
  explicit ManifestReader(std::filesystem::path path) : path_(std::move(path)) {}

  [[noreturn]] void fail(const std::string& detail) const {
    throw Error(ErrorKind::kData,
                "[dataset] " + in_quotes(path_.native()) + ": " + detail + ". Prepare the data again.");
  }

  const nlohmann::json& member(const nlohmann::json& object, const char* key) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || found == object.end()) fail("got no \"" + std::string(key) + "\", expected one");
    return *found;
  }

  int64_t number(const nlohmann::json& object, const char* key, int64_t lowest) const {
    const nlohmann::json& value = member(object, key);
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= std::numeric_limits<int64_t>::max()
                                                 : value.is_number_integer();
    if (!fits || value.get<int64_t>() < lowest) {
      fail("got " + in_quotes(value.dump().substr(0, 40)) + " as \"" + key + "\", expected an integer from " +
           std::to_string(lowest));
    }
    return value.get<int64_t>();
  }

  std::string text(const nlohmann::json& object, const char* key) const {
    const nlohmann::json& value = member(object, key);
    if (!value.is_string()) fail("got no string as \"" + std::string(key) + "\", expected one");
    return value.get<std::string>();
  }

  TokenShardInfo shard(const nlohmann::json& value) const {
    TokenShardInfo info{.name = text(value, "name"),
                        .num_tokens = number(value, "num_tokens", 0),
                        .num_documents = number(value, "num_documents", 0),
                        .bin_hash = text(value, "bin_xxh3"),
                        .idx_hash = text(value, "idx_xxh3")};
    if (value.contains("mask_xxh3")) {
      info.mask_hash = text(value, "mask_xxh3");
      info.num_answers = number(value, "num_answers", 0);
      if (info.mask_hash.empty() || info.num_answers > info.num_tokens) {
        fail("got " + std::to_string(info.num_answers) + " answers and the mask hash " + in_quotes(info.mask_hash) +
             " for " + std::to_string(info.num_tokens) + " tokens, expected at most that many and a hash");
      }
    }
    if (!is_plain_file_name(info.name))
      fail("got the shard name " + in_quotes(info.name) + ", expected a plain file name");
    return info;
  }

 private:
  std::filesystem::path path_;
};

nlohmann::ordered_json shard_json(const TokenShardInfo& shard) {
  nlohmann::ordered_json json = {{"name", shard.name},
                                 {"num_tokens", shard.num_tokens},
                                 {"num_documents", shard.num_documents},
                                 {"bin_xxh3", shard.bin_hash},
                                 {"idx_xxh3", shard.idx_hash}};
  if (!shard.mask_hash.empty()) {
    json["mask_xxh3"] = shard.mask_hash;
    json["num_answers"] = shard.num_answers;
  }
  return json;
}

// The lowest bytes of each token.
template <class Stored>
void narrow_to(std::span<const int32_t> tokens, char* out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto stored = static_cast<Stored>(tokens[i]);
    std::memcpy(out + i * sizeof(stored), &stored, sizeof(stored));
  }
}

void narrow(std::span<const int32_t> tokens, int bytes_per_token, char* out) {
  if (bytes_per_token == 1) return narrow_to<uint8_t>(tokens, out);
  if (bytes_per_token == 2) return narrow_to<uint16_t>(tokens, out);
  narrow_to<uint32_t>(tokens, out);
}

constexpr const char* kPairsOfDocuments = "pairs";

// Both documents of a pair are in one shard, with a mask.
void check_pairs(const std::filesystem::path& path, const std::string& split, const TokenShardInfo& shard) {
  if (shard.num_documents % 2 == 0 && (!shard.mask_hash.empty() || shard.num_documents == 0)) return;
  throw dataset_error(path, "split " + in_quotes(split) + ": got pairs of " + std::to_string(shard.num_documents) +
                                " documents " + (shard.mask_hash.empty() ? "without" : "with") +
                                " a mask, expected an even number with one.");
}

}  // namespace

void write_dataset_manifest(const std::filesystem::path& folder, const DatasetManifest& manifest) {
  const std::filesystem::path path = folder / kDatasetManifestName;
  if (manifest.vocab_size < 1 || manifest.eos_id < -1 || manifest.eos_id >= manifest.vocab_size) {
    throw dataset_error(path, "got vocab_size " + std::to_string(manifest.vocab_size) + " and eos_id " +
                                  std::to_string(manifest.eos_id) + ", expected -1 <= eos_id < vocab_size.");
  }
  int version = kManifestVersion;
  nlohmann::ordered_json splits = nlohmann::ordered_json::object();
  for (const auto& [split, shards] : manifest.splits) {
    auto& list = splits[split] = nlohmann::ordered_json::array();
    for (const TokenShardInfo& shard : shards) {
      if (!is_plain_file_name(shard.name)) {
        throw dataset_error(path, "got the shard name " + in_quotes(shard.name) + ", expected a plain file name.");
      }
      if (!shard.mask_hash.empty()) version = kMaskedManifestVersion;
      if (manifest.documents == Documents::kPairs) check_pairs(path, split, shard);
      list.push_back(shard_json(shard));
    }
  }
  json_string(manifest.tokenizer);  // refuses what is not UTF-8, before dump() would
  nlohmann::ordered_json json = {{"version", version},
                                 {"tokenizer", manifest.tokenizer},
                                 {"vocab_size", manifest.vocab_size},
                                 {"eos_id", manifest.eos_id}};
  if (!manifest.tokenizer_hash.empty()) json["tokenizer_xxh3"] = manifest.tokenizer_hash;
  if (manifest.documents == Documents::kPairs) json["documents"] = kPairsOfDocuments;
  json["splits"] = std::move(splits);
  write_file_atomically(path, json.dump(2) + "\n");
}

DatasetManifest read_dataset_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kDatasetManifestName;
  const nlohmann::json json = read_json_file(path);
  const ManifestReader reader(path);
  if (const int64_t version = reader.number(json, "version", 1); version > kMaskedManifestVersion) {
    reader.fail("got version " + std::to_string(version) + ", expected 1 or 2");
  }
  DatasetManifest manifest{.tokenizer = reader.text(json, "tokenizer"),
                           .vocab_size = reader.number(json, "vocab_size", 1),
                           .eos_id = reader.number(json, "eos_id", -1),
                           .splits = {}};
  if (manifest.eos_id >= manifest.vocab_size)
    reader.fail("got an eos_id outside of the vocabulary, expected one inside");
  if (json.contains("tokenizer_xxh3")) manifest.tokenizer_hash = reader.text(json, "tokenizer_xxh3");
  if (json.contains("documents")) {
    if (reader.text(json, "documents") != kPairsOfDocuments)
      reader.fail("got unknown \"documents\", expected \"pairs\"");
    manifest.documents = Documents::kPairs;
  }
  const nlohmann::json& splits = reader.member(json, "splits");
  if (!splits.is_object()) reader.fail("got no object as \"splits\", expected lists of shards by name");
  for (const auto& [split, shards] : splits.items()) {
    if (!shards.is_array()) reader.fail("got no list as split " + in_quotes(split) + ", expected a list of shards");
    auto& list = manifest.splits[split];
    for (const auto& shard : shards) {
      list.push_back(reader.shard(shard));
      if (manifest.documents == Documents::kPairs) check_pairs(path, split, list.back());
    }
  }
  return manifest;
}

TokenShardWriter::TokenShardWriter(const std::filesystem::path& path_stem, int bytes_per_token, AnswerMask mask)
    : bytes_per_token_(bytes_per_token), bin_(with_suffix(path_stem, ".bin")), idx_(with_suffix(path_stem, ".idx")) {
  if (bytes_per_token != 1 && bytes_per_token != 2 && bytes_per_token != 4) {
    throw dataset_error(path_stem, "got " + std::to_string(bytes_per_token) + " bytes per token, expected 1, 2 or 4.");
  }
  if (mask == AnswerMask::kPerToken) mask_.emplace(with_suffix(path_stem, ".msk"));
  const TokenShardHeader placeholder = {};  // counts are known at commit
  bin_.write(&placeholder, sizeof(placeholder));
  idx_.write(&placeholder, sizeof(placeholder));
  if (mask_) mask_->write(&placeholder, sizeof(placeholder));
}

void TokenShardWriter::check_document(std::span<const int32_t> tokens, std::span<const uint8_t> is_answer) const {
  if (tokens.empty()) {
    throw dataset_error(bin_.target(), "got an empty document, expected at least one token. Leave it out.");
  }
  if (is_answer.size() != (mask_ ? tokens.size() : 0)) {
    throw dataset_error(bin_.target(), "got a mask of " + std::to_string(is_answer.size()) + " entries for " +
                                           std::to_string(tokens.size()) + " tokens, expected " +
                                           (mask_ ? "as many." : "none."));
  }
  // All bits that occur: limits are of ones only, and a negative id has the highest bit.
  const uint32_t limit = bytes_per_token_ == 4 ? 0x7fffffffU : (1U << 8 * bytes_per_token_) - 1;
  uint32_t bits = 0;
  for (int32_t id : tokens) bits |= static_cast<uint32_t>(id);
  if (bits <= limit) return;
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [&](int32_t id) { return static_cast<uint32_t>(id) > limit; });
  throw Error(ErrorKind::kData, "[dataset] " + in_quotes(bin_.target().native()) + ": got token id " +
                                    std::to_string(*bad) + ", expected 0 to " + std::to_string(limit) + " in " +
                                    std::to_string(bytes_per_token_) + " bytes. Use more bytes per token.");
}

void TokenShardWriter::add_document(std::span<const int32_t> tokens, std::span<const uint8_t> is_answer) {
  check_document(tokens, is_answer);
  starts_.push_back(static_cast<uint64_t>(num_tokens_));
  const size_t before = token_bytes_.size();
  token_bytes_.resize(before + tokens.size() * static_cast<size_t>(bytes_per_token_));
  narrow(tokens, bytes_per_token_, token_bytes_.data() + before);
  for (uint8_t answer : is_answer) {
    answers_.push_back(answer != 0 ? 1 : 0);
    num_answers_ += answers_.back();
  }
  num_tokens_ += static_cast<int64_t>(tokens.size());
  ++num_documents_;
  if (token_bytes_.size() + starts_.size() * sizeof(uint64_t) >= kFlushBytes) flush();
}

TokenShardInfo TokenShardWriter::commit() {
  flush();
  TokenShardHeader header{.magic = kTokensMagic,
                          .version = kTokenShardVersion,
                          .item_bytes = static_cast<uint32_t>(bytes_per_token_),
                          .num_tokens = static_cast<uint64_t>(num_tokens_),
                          .num_documents = static_cast<uint64_t>(num_documents_),
                          .zero = {}};
  bin_.write_at(0, &header, sizeof(header));
  header.magic = kIndexMagic;
  header.item_bytes = kIndexItemBytes;
  idx_.write_at(0, &header, sizeof(header));
  header.magic = kMaskMagic;
  header.item_bytes = kMaskItemBytes;
  if (mask_) mask_->write_at(0, &header, sizeof(header));
  TokenShardInfo info{.name = bin_.target().stem().native(),
                      .num_tokens = num_tokens_,
                      .num_documents = num_documents_,
                      .bin_hash = hash_text(hash_file(bin_.temporary())),
                      .idx_hash = hash_text(hash_file(idx_.temporary())),
                      .mask_hash = mask_ ? hash_text(hash_file(mask_->temporary())) : "",
                      .num_answers = num_answers_};
  idx_.commit();
  if (mask_) mask_->commit();
  bin_.commit();
  return info;
}

void TokenShardWriter::flush() {
  bin_.write(token_bytes_.data(), token_bytes_.size());
  idx_.write(starts_.data(), starts_.size() * sizeof(uint64_t));
  if (mask_) mask_->write(answers_.data(), answers_.size());
  token_bytes_.clear();
  starts_.clear();
  answers_.clear();
}

}  // namespace fsdp::io
