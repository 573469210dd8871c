#include "train/data/data_splits.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "fsdp/base/error.h"
#include "io/base/hash.h"
#include "text/tokenizer/tokenizer.h"
#include "train/base/format.h"
#include "train/data/mixture.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(ErrorCode code, const std::string& text) { throw Error(code, "[train] " + text); }

void check_not_empty(const io::TokenDataset& data, const std::string& split) {
  constexpr int64_t kFewest = 2;  // one to read and one to predict
  if (data.num_tokens() >= kFewest) return;
  refuse(ErrorCode::kData, data.folder().string() + ": split " + split + " holds " + std::to_string(data.num_tokens()) +
                               " tokens, expected at least 2. Prepare more text, or leave this data set out.");
}

void check_tokenizer_files(const io::TokenDataset& data) {
  if (data.tokenizer_hash().empty() || !tokenizer_folder(data).empty()) return;
  refuse(ErrorCode::kData, data.folder().string() + ": got no folder " + io::kTokenizerFolder +
                               ", expected the files of the tokenizer that made the data. Copy the whole data set, or "
                               "prepare it again.");
}

void check_same_tokenizer(const io::TokenDataset& data, const io::TokenDataset& first) {
  const bool hashes_differ = data.tokenizer_hash() != first.tokenizer_hash() && !data.tokenizer_hash().empty() &&
                             !first.tokenizer_hash().empty();  // older data sets have none
  if (data.vocab_size() == first.vocab_size() && data.eos_id() == first.eos_id() &&
      data.tokenizer() == first.tokenizer() && !hashes_differ) {
    return;
  }
  const auto describe = [](const io::TokenDataset& set) {
    return set.folder().string() + " is of tokenizer " + set.tokenizer() + " with " + std::to_string(set.vocab_size()) +
           " tokens" + (set.tokenizer_hash().empty() ? "" : " (" + set.tokenizer_hash() + ")");
  };
  refuse(ErrorCode::kUsage, "data.path: " + describe(data) + ", " + describe(first) +
                                ". Prepare the data sets of a mixture with one tokenizer.");
}

void check_same_documents(const io::TokenDataset& data, const io::TokenDataset& first) {
  if (data.documents() == first.documents()) return;
  refuse(ErrorCode::kUsage, "data.path: one of " + data.folder().string() + " and " + first.folder().string() +
                                " holds pairs and the other does not. Mix data sets of one kind.");
}

// Data of which nothing was held out lacks the split that has the default name, and a run evaluates nothing then. One
// that asks for more would never hear that it has none.
void check_nothing_held_out(const Config& config, const std::set<std::string>& splits) {
  const std::string& name = config.data.heldout_split;
  const int64_t every = config.train.eval_every;
  if (name.empty() || (name == DataConfig().heldout_split && every == 0)) return;
  std::string known;
  for (const std::string& split : splits) known += (known.empty() ? "" : ", ") + split;
  refuse(ErrorCode::kUsage, "data.heldout_split: got " + io::in_quotes(name) +
                                (every > 0 ? " with train.eval_every = " + std::to_string(every) : "") +
                                ", expected a split of the data: " + known +
                                ". Name one, hold text out with `fsdp prepare --holdout`, or evaluate nothing with "
                                "--data.heldout_split= and no name.");
}

std::optional<PackedSplit> open_heldout(const std::vector<MixturePart>& parts, const Config& config) {
  const std::string& name = config.data.heldout_split;
  std::vector<PackedSplit::Source> sources;
  std::set<std::string> splits;
  for (const MixturePart& part : parts) {
    const auto manifest = io::read_dataset_manifest(part.path);
    for (const auto& split : manifest.splits) splits.insert(split.first);
    if (name.empty() || manifest.splits.count(name) == 0) continue;
    sources.push_back({io::TokenDataset::open(part.path, name), part.weight});
  }
  if (sources.empty()) {
    check_nothing_held_out(config, splits);
    return std::nullopt;
  }
  return PackedSplit(std::move(sources), config.data.sequence_length);
}

// The first id that means another token, or nothing.
std::optional<std::string> vocabulary_difference(const tokenizer::Tokenizer& data, const tokenizer::Tokenizer& model) {
  const int64_t common = std::min(data.vocab_size(), model.vocab_size());
  for (int64_t id = 0; id < common; ++id) {
    const std::string ours = data.token(static_cast<int32_t>(id));
    const std::string theirs = model.token(static_cast<int32_t>(id));
    if (ours == theirs) continue;
    return "token " + std::to_string(id) + " is " + io::in_quotes(ours) + " in the data, " + io::in_quotes(theirs) +
           " in the model";
  }
  if (data.vocab_size() <= model.vocab_size()) return std::nullopt;
  return "the data knows " + std::to_string(data.vocab_size()) + " tokens, the model " +
         std::to_string(model.vocab_size());
}

std::string describe_mixture(const PackedSplit& data) {
  if (data.sources().size() == 1) return "";
  const auto sum = std::accumulate(data.sources().begin(), data.sources().end(), 0.0,
                                   [](double so_far, const auto& source) { return so_far + source.weight; });
  std::string text;
  for (size_t i = 0; i < data.sources().size(); ++i) {
    const PackedSplit::Source& source = data.sources()[i];
    text += format_text("%s%.4g%% of %s (%s sequences)", text.empty() ? "" : ", ", 100 * source.weight / sum,
                        source.dataset.folder().filename().c_str(), with_thousands(data.num_sequences(i)).c_str());
  }
  return "; mixture: " + text;
}

std::string describe_heldout(const Splits& splits) {
  if (!splits.heldout) return "; held out: nothing";
  const auto& evaluated = splits.heldout->sources();
  std::string lacking;
  for (const PackedSplit::Source& source : splits.train.sources()) {
    const fs::path& folder = source.dataset.folder();
    const bool is_evaluated = std::any_of(evaluated.begin(), evaluated.end(),
                                          [&](const auto& heldout) { return heldout.dataset.folder() == folder; });
    if (!is_evaluated) lacking += (lacking.empty() ? "" : ", ") + folder.filename().string();
  }
  return "; held out: " + with_thousands(splits.heldout->num_tokens()) + " tokens" +
         (lacking.empty() ? "" : " (none of " + lacking + ")");
}

// What people name first: the text itself, or the folder of a run.
void check_is_dataset(const fs::path& folder) {
  std::error_code problem;  // such as no permission, which the open will tell
  if (fs::exists(folder / "dataset.json", problem) || problem) return;
  std::error_code ignored;
  const char* what = fs::is_directory(folder, ignored) ? "a folder without dataset.json"
                     : fs::exists(folder, ignored)     ? "a file"
                                                       : "nothing there";
  refuse(ErrorCode::kData, "data.path: " + folder.string() + ": got " + what +
                               ", expected a data set. Make one with `fsdp prepare`, and name its folder.");
}

}  // namespace

Splits open_splits(const Config& whole) {
  const DataConfig& config = whole.data;
  if (config.path.empty()) {
    refuse(ErrorCode::kUsage, "data.path is not set. Make a data set with `fsdp prepare`, and name its folder.");
  }
  const std::vector<MixturePart> parts = parse_mixture(config.path);
  std::vector<PackedSplit::Source> sources;
  for (const MixturePart& part : parts) {
    check_is_dataset(part.path);
    sources.push_back({io::TokenDataset::open(part.path, config.train_split), part.weight});
    const io::TokenDataset& data = sources.back().dataset;
    check_not_empty(data, config.train_split);
    check_tokenizer_files(data);
    check_same_tokenizer(data, sources.front().dataset);
    check_same_documents(data, sources.front().dataset);
  }
  return {PackedSplit(std::move(sources), config.sequence_length), open_heldout(parts, whole)};
}

void verify_splits(const Splits& splits, const std::string& choice) {
  constexpr int64_t kQuickTokens = int64_t{500} << 20;
  for (const PackedSplit* split : {&splits.train, splits.heldout ? &*splits.heldout : nullptr}) {
    if (split == nullptr || choice == "never") continue;
    if (choice != "always" && split->num_tokens() > kQuickTokens) continue;
    for (const PackedSplit::Source& source : split->sources()) source.dataset.verify_hashes();
  }
}

void fit_model(models::DecoderConfig& model, const Config& config, const PackedSplit& data) {
  const int64_t length = config.data.sequence_length;
  if (config.model.path.empty()) {
    model.max_position_embeddings = std::max(model.max_position_embeddings, length);
    return;
  }
  if (length > model.max_position_embeddings) {
    refuse(ErrorCode::kUsage, "data.sequence_length: got " + std::to_string(length) + ", expected at most " +
                                  std::to_string(model.max_position_embeddings) +
                                  ", the model's max_position_embeddings. Lower it.");
  }
  check_vocabulary(config.model.path, data.dataset());
}

void check_vocabulary(const std::string& model_folder, const io::TokenDataset& data) {
  const fs::path theirs = fs::path(model_folder) / "tokenizer.json";
  const fs::path ours = tokenizer_folder(data) / "tokenizer.json";
  if (tokenizer_folder(data).empty() || !fs::exists(theirs) || !fs::exists(ours)) return;
  if (io::hash_file(ours) == io::hash_file(theirs)) return;
  const auto difference = vocabulary_difference(tokenizer::Tokenizer::load(ours), tokenizer::Tokenizer::load(theirs));
  if (!difference) return;
  throw Error(ErrorCode::kUsage, "[data] vocabulary of tokenizer and model differ: " + *difference +
                                     ". Prepare the data with --tokenizer " + model_folder + ".");
}

std::string describe_splits(const Splits& splits) {
  const PackedSplit& data = splits.train;
  return with_thousands(data.num_tokens()) + " tokens in " + with_thousands(data.num_sequences()) + " sequences" +
         format_text(" (%.2f%% full, %.2f%% predicted)", 100 * data.fill_rate(), 100 * data.target_rate()) +
         describe_heldout(splits) + describe_mixture(data);
}

fs::path tokenizer_folder(const io::TokenDataset& data) {
  const fs::path folder = data.folder() / io::kTokenizerFolder;
  std::error_code ignored;
  return fs::is_directory(folder, ignored) ? folder : fs::path();
}

}  // namespace fsdp::train
