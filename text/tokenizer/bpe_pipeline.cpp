#include "text/tokenizer/bpe_pipeline.h"

#include <string>
#include <utility>

#include "io/base/error.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

constexpr size_t kMaxText = size_t{1} << 31;  // bytes, also after the normalizer: the model counts symbols in 32 bits

class ModelSink : public WordSink {
 public:
  ModelSink(const Bpe& model, BpeScratch& scratch, std::vector<int32_t>& ids)
      : model_(model), scratch_(scratch), ids_(ids) {}
  void take(std::string_view word) override { model_.encode(word, scratch_, ids_); }

 private:
  const Bpe& model_;
  BpeScratch& scratch_;
  std::vector<int32_t>& ids_;
};

void check_size(std::string_view text) {
  if (text.size() <= kMaxText) return;
  throw io::Error(io::ErrorKind::kData, "[tokenizer] got a text of " + std::to_string(text.size()) +
                                            " bytes, expected at most " + std::to_string(kMaxText) + ". Cut it.");
}

void check_utf8(std::string_view text) {
  if (const auto offset = find_invalid_utf8(text)) {
    throw io::Error(io::ErrorKind::kData, "[tokenizer] got bytes that are not UTF-8 at offset " +
                                              std::to_string(*offset) +
                                              " of a text, expected UTF-8. Convert it or leave it out.");
  }
}

}  // namespace

// A cache for the time of one call.
class BpePipeline::Lease {
 public:
  explicit Lease(const BpePipeline& owner) : owner_(owner) {
    const std::lock_guard lock(owner.mutex_);
    if (!owner.free_.empty()) {
      scratch_ = std::move(owner.free_.back());
      owner.free_.pop_back();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    if (scratch_ != nullptr) owner_.free_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  BpeScratch& scratch() {
    if (scratch_ == nullptr) scratch_ = std::make_unique<BpeScratch>();
    return *scratch_;
  }

 private:
  const BpePipeline& owner_;
  std::unique_ptr<BpeScratch> scratch_;
};

void BpePipeline::encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const {
  check_size(text);
  check_utf8(text);
  const bool adds = special == SpecialTokens::kAdd;
  if (adds) ids.insert(ids.end(), stages_.around.prefix.begin(), stages_.around.prefix.end());
  encode_text(text, Recognized::kAll, Position::kStart, ids);
  if (adds) ids.insert(ids.end(), stages_.around.suffix.begin(), stages_.around.suffix.end());
}

void BpePipeline::encode_part(std::string_view text, Position position, std::vector<int32_t>& ids) const {
  check_size(text);
  check_utf8(text);
  encode_text(text, Recognized::kOrdinary, position, ids);
}

void BpePipeline::encode_text(std::string_view text, Recognized which, Position position,
                              std::vector<int32_t>& ids) const {
  Lease lease(*this);
  const bool is_start = position == Position::kStart;
  const auto add_token = [&](int32_t id) { ids.push_back(id); };
  std::string storage;
  stages_.raw_tokens.split(
      text, which,
      [&](size_t first, size_t end) {
        const std::string_view normal = stages_.normalizer.normalize(text.substr(first, end - first), storage);
        check_size(normal);
        stages_.normalized_tokens.split(
            normal, which,
            [&](size_t from, size_t to) {
              encode_normalized(normal.substr(from, to - from), is_start && first == 0 && from == 0, lease.scratch(),
                                ids);
            },
            add_token);
      },
      add_token);
}

void BpePipeline::encode_normalized(std::string_view text, bool is_start, BpeScratch& scratch,
                                    std::vector<int32_t>& ids) const {
  ModelSink sink(stages_.model, scratch, ids);
  stages_.pre_tokenizer.split(text, is_start, sink);
}

}  // namespace fsdp::tokenizer
