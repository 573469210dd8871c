#include "train/generate/generation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "fsdp/base/error.h"
#include "kernels/products/few_rows.h"

namespace fsdp::train {
namespace {

// Whether prompts may be read together, by the number of their tokens. Products of more than 256 rows are hardly faster
// per row.
bool fit_together(const std::vector<std::vector<int64_t>>& prompts, size_t num_tokens, size_t next) {
  const auto is_short = models::DecoderImpl::is_short;
  const size_t most = is_short(next) ? size_t{kernels::kFewRows} : 256;
  return is_short(prompts.front().size()) == is_short(next) && num_tokens + next <= most;
}

Error usage_error(const std::string& text) { return {ErrorCode::kUsage, "[generate] " + text}; }

size_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

at::Tensor on_host(const at::Tensor& logits) { return logits.to(at::kCPU).to(at::kFloat); }

}  // namespace

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kStopId:
      return "stop_id";
    case Finish::kStopped:
      return "stop_string";
    case Finish::kMaxTokens:
      return "max_tokens";
    case Finish::kContext:
      return "context";
  }
  return "";
}

// A row of the cache, and the request that it works for.
struct Generator::Row {
  // How many tokens of its prompt the cache has, as the request's adapter makes them.
  size_t known(const GenerationRequest& wanted) const {
    return adapter == wanted.adapter ? common_prefix(ids, wanted.prompt) : 0;
  }

  int64_t index;
  std::vector<int64_t> ids = {};                   // that the cache has
  int64_t adapter = models::TokenAdapters::kNone;  // that it has them of
  std::optional<GenerationRequest> request = {};
  std::optional<Sampler> sampler = {};
  int64_t next_id = 0;  // drawn, and not in the cache yet
  int64_t count = 0;    // drawn for the request
};

Generator::Generator(models::Decoder model, const GenerationOptions& options)
    : model_(std::move(model)), prefixes_(options.prefixes), adapters_(options.adapters), cache_(options.num_rows) {
  if (options.num_rows < 1 || options.num_rows > kernels::kFewRows) {
    throw usage_error("rows at a time: got " + std::to_string(options.num_rows) + ", expected 1 to " +
                      std::to_string(kernels::kFewRows) + ".");
  }
  const int64_t most = model_->config().max_position_embeddings;
  context_ = options.context == 0 ? most : options.context;
  if (context_ < 2 || context_ > most) {
    throw usage_error("context: got " + std::to_string(context_) + ", expected 2 to the model's " +
                      std::to_string(most) + " tokens.");
  }
  for (int64_t row = 0; row < options.num_rows; ++row) rows_.push_back(std::make_unique<Row>(Row{.index = row}));
}

Generator::~Generator() = default;

void Generator::add(GenerationRequest request) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) throw usage_error("prompt: got no tokens, expected one at least.");
  if (length >= context_) {
    throw usage_error("prompt: got " + std::to_string(length) + " tokens, expected at most " +
                      std::to_string(context_ - 1) + ", which leave room for one more in a context of " +
                      std::to_string(context_) + ". Shorten the prompt.");
  }
  const int64_t vocab_size = model_->config().vocab_size;
  for (const int64_t id : request.prompt) {
    if (id < 0 || id >= vocab_size) {
      throw usage_error("prompt: got id " + std::to_string(id) + ", expected 0 to " + std::to_string(vocab_size - 1) +
                        ". The tokenizer belongs to another model.");
    }
  }
  if (request.max_tokens < 1) throw usage_error("max-tokens: got less than 1.");
  [[maybe_unused]] const Sampler throws_here(request.sampling);
  waiting_.push_back(std::move(request));
}

bool Generator::has_work() const {
  return !waiting_.empty() ||
         std::any_of(rows_.begin(), rows_.end(), [](const auto& row) { return row->request.has_value(); });
}

void Generator::step() {
  const bool has_room =
      std::any_of(rows_.begin(), rows_.end(), [](const auto& row) { return !row->request.has_value(); });
  if (!waiting_.empty() && has_room)
    read_prompts();
  else
    continue_rows();
}

// The one that knows most of the prompt already.
Generator::Row* Generator::free_row(const GenerationRequest& request) {
  Row* best = nullptr;
  for (const auto& row : rows_) {
    if (row->request) continue;
    if (best == nullptr || row->known(request) > best->known(request)) best = row.get();
  }
  return best;
}

// Gives the row to the first of the waiting requests. Returns what of its prompt the row's cache does not have.
std::vector<int64_t> Generator::begin_row(Row& row) {
  GenerationRequest request = std::move(waiting_.front());
  waiting_.pop_front();
  // The last token is always read: its logits are needed.
  const size_t known = prefixes_ == Prefixes::kReuse ? std::min(row.known(request), request.prompt.size() - 1) : 0;
  cache_.keep(row.index, static_cast<int64_t>(known));
  row.ids = request.prompt;
  row.adapter = request.adapter;
  row.sampler.emplace(request.sampling);
  for (const int64_t id : request.prompt) row.sampler->saw(id);
  row.request = std::move(request);
  row.count = 0;
  return {row.ids.begin() + static_cast<int64_t>(known), row.ids.end()};
}

void Generator::read_prompts() {
  std::vector<Row*> begun;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<int64_t> places;
  size_t num_tokens = 0;
  while (!waiting_.empty()) {
    Row* row = free_row(waiting_.front());
    if (row == nullptr) break;
    const bool is_alone = prefixes_ == Prefixes::kReuse;  // several prompts have to start at the same position
    if (!begun.empty() && (is_alone || !fit_together(prompts, num_tokens, waiting_.front().prompt.size()))) break;
    prompts.push_back(begin_row(*row));
    begun.push_back(row);
    places.push_back(row->index);
    num_tokens += prompts.back().size();
  }
  num_prompt_tokens_ += static_cast<int64_t>(num_tokens);
  if (adapters_) {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < begun.size(); ++i)
      numbers.insert(numbers.end(), prompts[i].size(), begun[i]->request->adapter);
    adapters_->choose(numbers);
  }
  const at::Tensor logits_PV = on_host(model_->read_prompts(prompts, cache_, places));
  const float* logits = logits_PV.const_data_ptr<float>();
  const auto vocab_size = static_cast<size_t>(logits_PV.size(1));
  for (size_t i = 0; i < begun.size(); ++i) take(*begun[i], {logits + i * vocab_size, vocab_size});
}

void Generator::continue_rows() {
  std::vector<Row*> active;
  std::vector<int64_t> ids, places;
  for (const auto& row : rows_) {
    if (!row->request) continue;
    active.push_back(row.get());
    ids.push_back(row->next_id);
    places.push_back(row->index);
    row->ids.push_back(row->next_id);
  }
  if (active.empty()) return;
  if (adapters_) {
    std::vector<int64_t> numbers;
    for (const Row* row : active) numbers.push_back(row->request->adapter);
    adapters_->choose(numbers);
  }
  const at::Tensor ids_B1 = at::tensor(ids, at::kLong).unsqueeze(1).to(model_->device());
  const at::Tensor logits_BTV = on_host(model_->forward_cached(ids_B1, cache_, places));
  const float* logits = logits_BTV.const_data_ptr<float>();
  const auto vocab_size = static_cast<size_t>(logits_BTV.size(2));
  for (size_t i = 0; i < active.size(); ++i) take(*active[i], {logits + i * vocab_size, vocab_size});
}

void Generator::take(Row& row, std::span<const float> logits) {
  const int64_t id = row.sampler->draw(logits);
  ++num_new_tokens_;
  const auto finish = [&](Finish why) {
    const GenerationRequest request = std::move(*row.request);
    row.request.reset();
    if (request.on_finish) request.on_finish(why);
  };
  const auto& stop_ids = row.request->stop_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) return finish(Finish::kStopId);
  row.sampler->saw(id);
  row.next_id = id;
  ++row.count;
  if (row.request->on_token && row.request->on_token(id) == Verdict::kStop) return finish(Finish::kStopped);
  if (row.count == row.request->max_tokens) return finish(Finish::kMaxTokens);
  if (static_cast<int64_t>(row.ids.size()) + 1 >= context_) return finish(Finish::kContext);
}

}  // namespace fsdp::train
