#include "train/evaluate/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

constexpr int64_t kTokensOfAForward = 2048;  // of a forward, unless a window is longer
constexpr int64_t kWaitingTokens = 131072;   // forwards are dealt out to the ranks: there must be many

Error usage_error(const char* what, int64_t got, int64_t lowest, int64_t highest) {
  return {ErrorCode::kUsage, "[eval] " + std::string(what) + ": got " + std::to_string(got) + ", expected " +
                                 std::to_string(lowest) + " to " + std::to_string(highest) + "."};
}

}  // namespace

std::vector<ScoredText> windows_of(std::span<const int32_t> ids, const Windows& windows) {
  std::vector<ScoredText> texts;
  const auto length = static_cast<int64_t>(ids.size());
  int64_t scored = 1;
  for (int64_t begin = 0; scored < length; begin += windows.stride) {
    const int64_t end = std::min(begin + windows.context, length);
    const auto part = ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    texts.push_back({{part.begin(), part.end()}, scored - begin});
    scored = end;
  }
  return texts;
}

double Perplexity::per_token() const { return num_tokens == 0 ? 0 : std::exp(nats / static_cast<double>(num_tokens)); }

double Perplexity::bits_per_byte() const {
  return num_bytes == 0 ? 0 : nats / std::numbers::ln2 / static_cast<double>(num_bytes);
}

PerplexityMeter::PerplexityMeter(InferenceModel& model, const Windows& windows) : model_(model), windows_(windows) {
  const int64_t most = model.config().max_position_embeddings;
  if (windows.context < 2 || windows.context > most) throw usage_error("context", windows.context, 2, most);
  if (windows.stride < 1 || windows.stride >= windows.context)
    throw usage_error("stride", windows.stride, 1, windows.context - 1);
}

void PerplexityMeter::add(std::span<const int32_t> ids, int64_t num_bytes) {
  sum_.num_bytes += num_bytes;
  sum_.num_documents += ids.size() > 1 ? 1 : 0;
  for (ScoredText& text : windows_of(ids, windows_)) {
    num_waiting_ += static_cast<int64_t>(text.ids.size());
    waiting_.push_back(std::move(text));
    if (num_waiting_ >= kWaitingTokens) score();
  }
}

const Perplexity& PerplexityMeter::result() {
  score();
  return sum_;
}

void PerplexityMeter::score() {
  for (const double sum : log_likelihoods(model_, waiting_, kTokensOfAForward)) sum_.nats -= sum;
  for (const ScoredText& text : waiting_) sum_.num_tokens += text.num_targets();
  waiting_.clear();
  num_waiting_ = 0;
}

}  // namespace fsdp::train
