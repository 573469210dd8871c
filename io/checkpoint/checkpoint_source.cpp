#include "io/checkpoint/checkpoint_source.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/base/error.h"
#include "io/base/json.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/hub/companion_files.h"

namespace fsdp::io {

namespace {

constexpr std::string_view kModelPrefix = "model/";
constexpr std::string_view kAveragePrefix = "ema/average/";
constexpr std::string_view kIteratePrefix = "optimizer/iterate/";  // of schedule_free
constexpr const char* kTokenizerFile = "fsdp_tokenizer.json";
constexpr const char* kTokenizerFolder = "tokenizer_folder";  // of the data set, where it was
constexpr const char* kTokenizerHashes = "tokenizer_files";   // what it holds, by name
constexpr const char* kAverageBeta1 = "schedule_free_beta1";
constexpr const char* kAdapterConfig = "adapter_config";
constexpr uint64_t kMinBatchBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxBatchBytes = uint64_t{512} << 20;
constexpr unsigned kMaxThreads = 8;

// Elements of a tensor that are read in one batch with others.
struct Piece {
  size_t tensor;
  int64_t first;
  int64_t count;
  size_t place;  // byte of the batch
};

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const std::filesystem::path& folder, CheckpointWeights weights)
      : WeightSource(folder), manifest_(read_manifest(folder)) {
    const bool averaged = weights == CheckpointWeights::kAveraged;
    size_t num_averages = 0;
    for (const CheckpointTensor& tensor : manifest_.tensors) {
      if (!tensor.name.starts_with(kModelPrefix)) {
        if (!averaged || !tensor.name.starts_with(kAveragePrefix)) left_out_.push_back(tensor.name);
        continue;
      }
      const std::string name = tensor.name.substr(kModelPrefix.size());
      const CheckpointTensor* average = averaged ? manifest_.find(std::string(kAveragePrefix) + name) : nullptr;
      if (average != nullptr) ++num_averages;
      const CheckpointTensor& stored = average != nullptr ? *average : tensor;
      tensors_.push_back({name, stored.shape, stored.dtype, std::string(io::name(stored.dtype))});
      stored_.push_back(&stored);
      iterates_.push_back(averaged ? nullptr : iterate_of(name, stored));
    }
    if (std::any_of(iterates_.begin(), iterates_.end(), [](const auto* each) { return each != nullptr; }))
      beta1_ = stored_beta1();
    if (averaged && num_averages == 0) {
      throw Error(ErrorKind::kModel, "[source] " + in_quotes(folder.native()) +
                                         ": got a checkpoint without averages of weights, expected tensors below "
                                         "\"ema/average/\". Train with train.ema, or leave --ema out.");
    }
    if (tensors_.empty()) {
      throw Error(ErrorKind::kModel,
                  "[source] " + in_quotes(folder.native()) +
                      ": got a checkpoint without model weights, expected tensors below \"model/\".");
    }
    description_ = std::string(averaged ? "averages of the " : "") + "checkpoint of step " +
                   std::to_string(manifest_.step) + ", written by " + std::to_string(manifest_.world_size) + " rank(s)";
    if (const auto config = run_value("model_config")) {
      config_ = parse_json(*config, (folder / kManifestName).native(), {.kind = ErrorKind::kModel});
    }
    if (const auto adapter = run_value(kAdapterConfig)) {
      adapter_config_ = parse_json(*adapter, (folder / kManifestName).native(), {.kind = ErrorKind::kModel});
    }
    if (const auto tokenizer = run_value(kTokenizerFile)) companion_texts_[kTokenizerFile] = *tokenizer;
    if (const auto where = run_value(kTokenizerFolder)) find_tokenizer(*where);
  }

  // A chunk of a file is hashed whole even if little of it is wanted: batches as large as memory allows, of tensors
  // that lie near each other.
  void read(const std::vector<size_t>& wanted, const PieceSink& sink) const override {
    const uint64_t limit = std::clamp(kChunkBytes * manifest_.files.size(), kMinBatchBytes, kMaxBatchBytes);
    std::vector<Piece> batch;
    uint64_t batch_bytes = 0;
    for (const size_t index : in_file_order(wanted)) {
      const uint64_t item = item_size(stored_[index]->dtype);
      const int64_t numel = stored_[index]->numel();
      for (int64_t first = 0; first < numel;) {
        const int64_t room = std::max<int64_t>(static_cast<int64_t>((limit - batch_bytes) / item), 1);
        const int64_t count = std::min(room, numel - first);
        batch.push_back({index, first, count, batch_bytes});
        batch_bytes += (static_cast<uint64_t>(count) * item + 7) / 8 * 8;  // keeps elements aligned
        first += count;
        if (batch_bytes >= limit) flush(batch, batch_bytes, sink);
      }
    }
    flush(batch, batch_bytes, sink);
  }

 private:
  // The path is the checkpoint's word: only files whose hashes it knows are taken.
  void find_tokenizer(const std::string& where) {
    const std::string identity = run_value(kTokenizerHashes).value_or("{}");
    companions_ = identified_tokenizer_files(where, identity, (path_ / kManifestName).native());
    if (companions_.empty()) left_out_.insert(left_out_.begin(), "tokenizer (no file of the run in " + where + ")");
  }

  // What `fsdp train` stored under that name.
  std::optional<std::string> run_value(const char* name) const {
    const auto run = manifest_.values.find("run");
    if (run == manifest_.values.end() || !run->is_object()) return std::nullopt;
    const auto value = run->find(name);
    return value == run->end() || !value->is_string() ? std::nullopt : std::optional(value->get<std::string>());
  }

  // Of a parameter that schedule_free has updated; else null.
  const CheckpointTensor* iterate_of(const std::string& name, const CheckpointTensor& weight) const {
    const CheckpointTensor* iterate = manifest_.find(std::string(kIteratePrefix) + name);
    if (iterate == nullptr) return nullptr;
    const bool is_like_it = iterate->numel() == weight.numel() && iterate->dtype == weight.dtype;
    if (is_like_it && weight.dtype == DType::F32) return iterate;
    throw Error(ErrorKind::kModel, "[source] " + in_quotes(iterate->name) + ": got " +
                                       std::to_string(iterate->numel()) + " elements of " +
                                       std::string(io::name(iterate->dtype)) + ", expected " +
                                       std::to_string(weight.numel()) + " of F32, like its weight.");
  }

  double stored_beta1() const {
    const std::string text = run_value(kAverageBeta1).value_or("");
    double beta1 = 0;
    std::from_chars(text.data(), text.data() + text.size(), beta1);
    if (beta1 > 0 && beta1 < 1) return beta1;
    throw Error(
        ErrorKind::kModel,
        "[source] " + in_quotes(path_.native()) + ": got weights of ScheduleFreeAdamW without its beta1, expected " +
            "the checkpoint of a run of `fsdp train`: their average, which the model is, cannot be told without " +
            "it. Call use_average() and save the model.");
  }

  // Weights in `bytes` become x = y + (1 / beta1 - 1) (y - z), z at the same place of `iterates`.
  void average(const Piece& piece, char* bytes, const char* iterates) const {
    auto* weights = reinterpret_cast<float*>(bytes + piece.place);
    const auto* others = reinterpret_cast<const float*>(iterates + piece.place);
    const auto factor = static_cast<float>(1 / beta1_ - 1);
    for (int64_t i = 0; i < piece.count; ++i) weights[i] += factor * (weights[i] - others[i]);
  }

  std::vector<size_t> in_file_order(std::vector<size_t> wanted) const {
    const auto place = [&](size_t index) {
      const auto& parts = stored_[index]->parts;
      return parts.empty() ? uint64_t{0} : parts.front().offset;
    };
    std::stable_sort(wanted.begin(), wanted.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
    return wanted;
  }

  void flush(std::vector<Piece>& batch, uint64_t& batch_bytes, const PieceSink& sink) const {
    if (batch.empty()) return;
    std::vector<char> bytes(batch_bytes);
    std::vector<ReadRange> ranges;
    std::vector<char> iterates(beta1_ > 0 ? batch_bytes : 0);
    for (const Piece& piece : batch) {
      add_ranges(piece, *stored_[piece.tensor], bytes.data() + piece.place, ranges);
      if (iterates_[piece.tensor] != nullptr)
        add_ranges(piece, *iterates_[piece.tensor], iterates.data() + piece.place, ranges);
    }
    const unsigned num_threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
    read_ranges(path_, manifest_, std::move(ranges), static_cast<int>(num_threads));
    for (const Piece& piece : batch) {
      if (iterates_[piece.tensor] != nullptr) average(piece, bytes.data(), iterates.data());
    }
    for (const Piece& piece : batch) sink(piece.tensor, piece.first, piece.count, bytes.data() + piece.place);
    batch.clear();
    batch_bytes = 0;
  }

  static void add_ranges(const Piece& piece, const CheckpointTensor& tensor, char* out,
                         std::vector<ReadRange>& ranges) {
    const uint64_t item = item_size(tensor.dtype);
    for (const CheckpointPart& part : tensor.parts) {
      const int64_t begin = std::max(part.begin, piece.first);
      const int64_t end = std::min(part.end, piece.first + piece.count);
      if (begin >= end) continue;
      ranges.push_back({.file = part.file,
                        .offset = part.offset + static_cast<uint64_t>(begin - part.begin) * item,
                        .bytes = static_cast<uint64_t>(end - begin) * item,
                        .out = out + static_cast<uint64_t>(begin - piece.first) * item});
    }
  }

  const CheckpointManifest manifest_;
  std::vector<const CheckpointTensor*> stored_;    // of tensors_
  std::vector<const CheckpointTensor*> iterates_;  // likewise; null: what is stored are the weights
  double beta1_ = 0;
};

}  // namespace

std::unique_ptr<WeightSource> open_checkpoint_source(const std::filesystem::path& folder, CheckpointWeights weights) {
  return std::make_unique<CheckpointSource>(folder, weights);
}

}  // namespace fsdp::io
