// A token data set: dataset.json, s0.bin, s0.idx, s1.bin, s1.idx, s0.msk; the split "train" is opened. Tokens and
// starts that can be read are those that a writer turns into the same files.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/token_shard_header.h"
#include "io/tokens/token_shards.h"
#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

constexpr const char* kNames[] = {"dataset.json", "s0.bin", "s0.idx", "s1.bin", "s1.idx", "s0.msk"};
constexpr const char* kSplit = "train";

std::string file_text(const std::filesystem::path& path) {
  const io::InputFile file(path, io::ErrorKind::kData);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

// Any part of the split has the starts that the whole has there.
void check_starts(const io::TokenDataset& dataset, const std::vector<int64_t>& starts) {
  const int64_t total = dataset.num_tokens();
  FUZZ_REQUIRE(static_cast<int64_t>(starts.size()) == dataset.num_documents());
  FUZZ_REQUIRE(std::is_sorted(starts.begin(), starts.end(), std::less_equal<>()));
  FUZZ_REQUIRE(total == 0 || (starts.front() == 0 && starts.back() < total));
  const int64_t first = total / 3;
  const int64_t n = total / 2;
  std::vector<int64_t> expected;
  for (const int64_t start : starts) {
    if (start >= first && start < first + n) expected.push_back(start - first);
  }
  FUZZ_REQUIRE(dataset.document_starts(first, n) == expected);
}

// Writes the only shard again.
void check_rewritten(const ScratchFolder& folder, const io::TokenShardInfo& info, const std::vector<int32_t>& tokens,
                     const std::vector<int64_t>& starts) {
  static const ScratchFolder copies;
  const std::string bin = file_text(folder / (info.name + ".bin"));
  io::TokenShardWriter writer(copies / "copy", bin[offsetof(io::TokenShardHeader, item_bytes)]);
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto end = i + 1 < starts.size() ? static_cast<size_t>(starts[i + 1]) : tokens.size();
    const auto begin = static_cast<size_t>(starts[i]);
    writer.add_document(std::span(tokens).subspan(begin, end - begin));
  }
  const io::TokenShardInfo copy = writer.commit();
  FUZZ_REQUIRE(copy.num_tokens == info.num_tokens && copy.num_documents == info.num_documents);
  FUZZ_REQUIRE(file_text(copies / "copy.bin") == bin);
  FUZZ_REQUIRE(file_text(copies / "copy.idx") == file_text(folder / (info.name + ".idx")));
}

void check_manifest(const io::DatasetManifest& manifest) {
  static const ScratchFolder copies;
  io::write_dataset_manifest(copies.path(), manifest);
  const std::string text = file_text(copies / kNames[0]);
  io::write_dataset_manifest(copies.path(), io::read_dataset_manifest(copies.path()));
  FUZZ_REQUIRE(file_text(copies / kNames[0]) == text);
}

void check_dataset(const ScratchFolder& folder, const io::TokenDataset& dataset, const io::DatasetManifest& manifest) {
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.num_tokens()));
  const auto total = static_cast<int64_t>(tokens.size());
  std::vector<int64_t> starts;
  const bool readable = accepts([&] { dataset.read(0, total, tokens.data()); });
  const bool has_starts = accepts([&] { starts = dataset.document_starts(0, total); });
  accepts([&] { dataset.verify_hashes(); });
  std::vector<uint8_t> mask(tokens.size());
  const bool has_mask = accepts([&] { dataset.read_mask(0, total, mask.data()); });
  for (const uint8_t answer : mask) FUZZ_REQUIRE(!has_mask || answer <= 1);
  FUZZ_REQUIRE(dataset.num_answers() >= 0 && dataset.num_answers() <= total);
  FUZZ_REQUIRE(!accepts([&] { dataset.read(total, 1, nullptr); }));
  for (const int32_t token : tokens) FUZZ_REQUIRE(!readable || (token >= 0 && token < dataset.vocab_size()));
  if (!has_starts) return;
  check_starts(dataset, starts);
  const auto& shards = manifest.splits.at(kSplit);
  if (readable && shards.size() == 1) check_rewritten(folder, shards[0], tokens, starts);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static const fuzz::ScratchFolder folder;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, std::size(fuzz::kNames));
  for (size_t i = 0; i < parts.size(); ++i) folder.write(fuzz::kNames[i], parts[i]);
  io::DatasetManifest manifest;
  if (!fuzz::accepts([&] { manifest = io::read_dataset_manifest(folder.path()); })) return 0;
  fuzz::check_manifest(manifest);
  std::unique_ptr<io::TokenDataset> dataset;
  if (fuzz::accepts(
          [&] { dataset = std::make_unique<io::TokenDataset>(io::TokenDataset::open(folder.path(), fuzz::kSplit)); })) {
    fuzz::check_dataset(folder, *dataset, manifest);
  }
  return 0;
}
