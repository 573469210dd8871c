#include "train/loop/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "fsdp/base/fault_point.h"
#include "fsdp/base/trace.h"
#include "io/base/hash.h"
#include "train/axes/decoder_pipeline.h"
#include "train/base/agreement.h"
#include "train/base/format.h"
#include "train/base/stop_signal.h"
#include "train/loop/ledger.h"

namespace fsdp::train {
namespace {

// Of what belongs to no unit.
const std::string kNoUnit;

// Whether finding spikes has a purpose, and what it needs.
int64_t spike_window(const TrainConfig& config) { return config.on_spike == "off" ? 0 : config.spike_window; }

std::vector<std::string> names_of(const std::vector<WholeTensor>& tensors) {
  std::vector<std::string> names;
  for (const WholeTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

// Other words than those that follow, drawn by no generator: a batch that teaches nonsense.
void scramble(Batch& batch, int64_t vocab_size) {
  const at::Tensor counts = at::arange(batch.targets_N.numel(), at::kLong) * 7919 + 13;
  batch.targets_N = at::where(batch.targets_N.eq(kNoTarget), batch.targets_N, counts.remainder(vocab_size));
}

bool is_finite(const StepResult& result) { return std::isfinite(result.loss) && std::isfinite(result.grad_norm); }

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

bool same_bits(const StepResult& a, const StepResult& b) {
  return same_bits(a.loss, b.loss) && same_bits(a.grad_norm, b.grad_norm);
}

// Of pairs of a position in the data and a loss there: whoever they are from, they are added up in the data's order.
double sum_by_position(const at::Tensor& pairs) {
  std::vector<std::pair<double, double>> losses;
  const double* numbers = pairs.const_data_ptr<double>();
  for (int64_t i = 0; i < pairs.numel(); i += 2) losses.emplace_back(numbers[i], numbers[i + 1]);
  std::stable_sort(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  double sum = 0;
  for (const auto& [position, loss] : losses) sum += loss;
  return sum;
}

// Not the lowest bit: the next update might round that away.
void flip_bit(const at::Tensor& leaf) {
  if (leaf.numel() > 0) leaf.detach().view(-1).narrow(0, 0, 1).view(at::kInt).bitwise_xor_(1 << 12);
}

// Ranks have the same norm, but where one of those along "tp" has computed wrongly what they all compute: then on some
// it is finite, which must not act as if all were well.
double agreed_norm(double own, bool some_are_not_finite) {
  return std::isfinite(own) && some_are_not_finite ? std::numeric_limits<double>::quiet_NaN() : own;
}

// 1 / E where all experts are equally busy. Layers without experts have zeros.
double fullest_share(const at::Tensor& counts_LE) {
  return (counts_LE / counts_LE.sum(1, /*keepdim=*/true).clamp_min(1)).max().item<double>();
}

// Layers come one after the other, and each waits for its busiest rank.
double busiest_share(const at::Tensor& counts_LE, int num_ranks) {
  const at::Tensor counts_LR = counts_LE.view({counts_LE.size(0), num_ranks, -1}).sum(2);
  const double all = counts_LR.mean(1).sum().item<double>();
  return all > 0 ? std::get<0>(counts_LR.max(1)).sum().item<double>() / all : 1;
}

std::string numbers_text(const StepResult& result) {
  return "loss " + std::to_string(result.loss) + ", gradient norm " + std::to_string(result.grad_norm);
}

// Dropout is for steps: not for evaluations and samples.
class TrainingMode {
 public:
  explicit TrainingMode(models::Decoder& decoder) : decoder_(decoder) { decoder_->train(); }
  ~TrainingMode() { decoder_->eval(); }
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  models::Decoder& decoder_;
};

}  // namespace

std::string describe_trouble(const StepResult& result, const GradScaler* scaler) {
  const bool skipped = result.outcome == StepResult::Outcome::kSkipped;
  if (result.spike) {
    return format_text("is a spike%s: loss %.4f (limit %.4f), gradient norm %.4f (limit %.4f)",
                       skipped ? " and skipped" : "", result.loss, result.spike->loss_limit, result.grad_norm,
                       result.spike->grad_norm_limit);
  }
  if (result.overflowed) {
    return format_text("skipped: gradients overflowed at loss scale %g, which is %g now", result.loss_scale,
                       scaler->current_scale());
  }
  if (!skipped) return "";
  return format_text("skipped: loss %f, gradient norm %f, computed twice", result.loss, result.grad_norm);
}

Trainer::Trainer(const TrainConfig& config, const World& world, const BatchSource& batches, ShardedModel& model,
                 const CheckConfig& check, const OptimizerConfig& optimizer)
    : config_(config),
      check_(check),
      world_(world),
      batches_(batches),
      model_(model),
      parameters_(parameters(*model.decoder)),
      optimizer_(optimizer, config, model),
      fp8_scales_(model.pipeline ? Fp8DelayedScales(*model.decoder, world, names_of(whole_tensors(model)))
                                 : Fp8DelayedScales(*model.decoder, world)),
      schedule_(make_schedule(config)),
      spikes_(spike_window(config), config.spike_threshold) {
  model_.decoder->eval();
  if (config.ema > 0) ema_.emplace(parameters_, EmaOptions{config.ema});
  const std::vector<at::Tensor> computed_with = model_.decoder->parameters();
  if (std::any_of(computed_with.begin(), computed_with.end(),
                  [](const at::Tensor& weight) { return weight.scalar_type() == at::kHalf; }))
    scaler_.emplace();
}

StepResult Trainer::step(const RankNews& news) {
  fault_point("step.begin");
  fp8_scales_.begin_step();
  Computed computed = compute();
  StepResult result = agree(computed, news);  // before the update, which must not see a NaN
  const bool overflowed = has_overflowed(result);
  if (!overflowed && (is_doubtful(result) || is_due_for_check())) result = check_again(result, computed, news);
  fault_point("step.agreed");
  result.lr = schedule_.at(step_);
  if (overflowed) {
    result.overflowed = true;
    result.outcome = StepResult::Outcome::kSkipped;
    update(result, computed);
    ++step_;
    return result;
  }
  judge(result);
  if (scaler_ && result.outcome != StepResult::Outcome::kUpdated) scaler_->forget_step();
  if (result.outcome == StepResult::Outcome::kRollBack) return result;
  if (result.outcome == StepResult::Outcome::kSkipped) {
    skip(result);
    return result;
  }
  fault_point("step.optimizer");
  update(result, computed);
  if (ema_) update_average();
  if (fault_point("value.bitflip_weight").inject) flip_bit(parameters_.front());
  fp8_scales_.update();
  spikes_.add(result.loss, result.grad_norm);
  ++step_;
  fault_point("step.end");
  return result;
}

// Gradients alone: a loss that is not finite has other reasons, and at scale 1 there is nothing left to lower.
bool Trainer::has_overflowed(const StepResult& result) const {
  return scaler_ && std::isfinite(result.loss) && !std::isfinite(result.grad_norm) && result.loss_scale > 1;
}

void Trainer::update(const StepResult& result, const Computed& computed) {
  const TraceScope scope("optimizer", kNoUnit);
  optimizer_->set_lr(result.lr);
  if (!scaler_) return optimizer_->step(computed.clip_factor);
  scaler_->step(*optimizer_);  // knows the factor
  scaler_->update();
}

void Trainer::update_average() {
  const TraceScope scope("optimizer", kNoUnit);
  ema_->update();
}

void Trainer::with_averages(const std::function<void()>& action) {
  ema_->use_average();
  action();
  ema_->use_trained();
}

int64_t Trainer::optimizer_bytes() const { return optimizer_->state_bytes() + (ema_ ? ema_->state_bytes() : 0); }

void Trainer::skip(const StepResult& result) {
  if (is_finite(result)) spikes_.add(result.loss, result.grad_norm);
  ++step_;
}

// Worth a second look before the weights change or do not.
bool Trainer::is_doubtful(const StepResult& result) const {
  const bool acts_on_spikes = config_.on_spike == "skip" || config_.on_spike == "rollback";
  return !is_finite(result) || (acts_on_spikes && spikes_.check(result.loss, result.grad_norm));
}

// The same numbers on every rank lead to the same outcome.
void Trainer::judge(StepResult& result) const {
  const bool finite = is_finite(result);
  if (!finite) give_up(result);
  if (finite) result.spike = spikes_.check(result.loss, result.grad_norm);
  if (finite && !result.spike) return;
  const std::string& policy = finite ? config_.on_spike : config_.on_nonfinite;
  if (policy == "skip") result.outcome = StepResult::Outcome::kSkipped;
  if (policy == "rollback") result.outcome = StepResult::Outcome::kRollBack;
}

// Gradients of the step, from scratch.
Trainer::Computed Trainer::compute() {
  Computed computed;
  const TrainingMode dropout(model_.decoder);
  zero_grad(*model_.decoder);
  const at::Tensor total = model_.pipeline ? compute_in_stages(computed) : compute_microbatches(computed);
  fault_point("step.reduced");
  if (fault_point("value.grad").inject) parameters_.front().mutable_grad().fill_(INFINITY);
  const TraceScope scope("gradient norm", kNoUnit);
  const GradNorm norm = norm_of_gradients();
  computed.clip_factor = norm.factor;
  // One wait for a device; the norm is the host's where main weights are.
  const at::Tensor numbers = at::stack({total, norm.norm.to(total.device(), at::kDouble)}).to(at::kCPU);
  computed.loss = numbers[0].item<double>();
  computed.grad_norm = numbers[1].item<double>();
  if (fault_point("value.loss").inject) {
    computed.loss = std::numeric_limits<double>::quiet_NaN();
    for (double& loss : computed.losses) loss = computed.loss;
  }
  return computed;
}

// With the loss that keeps experts equally busy: the mean over microbatches, which all ranks have at a time.
at::Tensor Trainer::balanced(const at::Tensor& loss, Computed& computed) const {
  const at::Tensor balance = model_.decoder->balance_loss();
  const at::Tensor& counts_LE = model_.decoder->expert_counts();
  computed.expert_counts_LE = computed.expert_counts_LE.defined() ? computed.expert_counts_LE + counts_LE : counts_LE;
  const double factor = model_.decoder->config().experts.balance_loss;
  return factor == 0 ? loss : loss + balance * (factor / static_cast<double>(batches_.num_microbatches(step_)));
}

// The sum over its targets, or pairs.
at::Tensor Trainer::loss_of(const Batch& batch, Computed& computed) {
  if (!objective_) return summed_loss(model_.decoder, batch, loss_terms());
  return objective_->loss_of(model_.decoder, batch, objective_->train, computed.preference);
}

// One after the other, forward and backward. Returns the sum of the losses, 0-dim fp64 on the model's device.
at::Tensor Trainer::compute_microbatches(Computed& computed) {
  const auto num_targets = static_cast<double>(batches_.num_targets(step_));
  const int64_t num_micro = batches_.num_microbatches(step_);
  const c10::Device device = computing_device(model_.decoder);
  at::Tensor total = at::zeros({}, at::device(device).dtype(at::kDouble));
  for (int64_t micro = 0; micro < num_micro; ++micro) {
    const Microbatch scope(model_.root, /*is_last=*/micro + 1 == num_micro);
    Batch batch = next_microbatch(micro, computed);
    seed_random_numbers(batches_.position(step_, micro));
    fault_point("step.forward");
    // Divided by the targets of all ranks, which add up.
    at::Tensor loss = loss_of(on_device(std::move(batch), device), computed) / num_targets;
    if (model_.decoder->config().experts.count > 0) loss = balanced(loss, computed);
    fault_point("step.backward");
    (scaler_ ? scaler_->scale(loss) : loss).backward();
    total.add_(loss.detach());
    if (config_.world_invariant) computed.losses.push_back(loss.item<double>());
  }
  return total;
}

// Through the stages of a pipeline, several at a time. The sum is known on all of them.
at::Tensor Trainer::compute_in_stages(Computed& computed) {
  const auto num_targets = static_cast<double>(batches_.num_targets(step_));
  std::vector<Batch> batches;
  std::vector<StageInput> inputs;
  for (int64_t micro = 0; micro < batches_.num_microbatches(step_); ++micro) {
    batches.push_back(on_device(next_microbatch(micro, computed), computing_device(model_.decoder)));
    inputs.push_back({batches.back().input_ids_BT, batches.back().sequence});
  }
  const DecoderPipeline::Around around{[this](const models::BlockRange& blocks, int micro) {
                                         seed_random_numbers(batches_.position(step_, micro), blocks.first);
                                         fault_point("step.forward");
                                       },
                                       [] { fault_point("step.backward"); }};
  if (scaler_) scaler_->expect_scaled();
  const double scale = scaler_ ? scaler_->current_scale() : 1;
  const double balance = model_.decoder->config().experts.balance_loss;
  const double loss = model_.pipeline->step(
      inputs, around,
      [&](const at::Tensor& hidden_BTE, int micro) {
        const at::Tensor& targets = batches[static_cast<size_t>(micro)].targets_N;
        const at::Tensor own =
            model_.decoder->loss_of(hidden_BTE, targets, kernels::Reduction::kSum, loss_terms()) / num_targets;
        return (own + model_.pipeline->balance_loss(micro)) * scale;
      },
      {balance / static_cast<double>(batches_.num_microbatches(step_)), scale});
  computed.expert_counts_LE = model_.pipeline->expert_counts();
  return at::scalar_tensor(loss / scale, at::kDouble);  // a power of two: exact
}

kernels::LossTerms Trainer::loss_terms() const { return {config_.z_loss, config_.label_smoothing}; }

GradNorm Trainer::norm_of_gradients() {
  const double max_norm = config_.clip > 0 ? config_.clip : std::numeric_limits<double>::infinity();
  if (model_.pipeline) {
    const GradNorm norm = model_.pipeline->grad_norm(max_norm);
    return scaler_ ? scaler_->grad_norm_from(norm.norm, parameters_, max_norm) : norm;
  }
  return scaler_ ? scaler_->grad_norm(parameters_, max_norm) : grad_norm(parameters_, max_norm);
}

// This rank's part of its sequences, counted in the step's hash.
Batch Trainer::next_microbatch(int64_t micro, Computed& computed) const {
  Batch batch = next_batch(micro);
  computed.batch_hash += hash_rows(batch, batches_.position(step_, micro));
  if (fault_point("value.targets").inject) scramble(batch, model_.decoder->config().vocab_size);
  return part_of_sequences(std::move(batch), model_.place);
}

Batch Trainer::next_batch(int64_t micro) const {
  const TraceScope scope("data", kNoUnit);
  return batches_.microbatch(step_, micro);
}

void Trainer::seed_random_numbers(int64_t position, int64_t first_block) const {
  const std::array<int64_t, 2> place = {config_.seed, position};
  // Parts of one sequence differ in them, and so do stages.
  const auto part = static_cast<uint64_t>(model_.place.context_index + model_.place.num_context * first_block);
  at::manual_seed(io::hash_bytes({reinterpret_cast<const char*>(place.data()), sizeof(place)}) + part);
}

// The small all-reduce of the step. Halves of the hash: a double adds 32-bit integers exactly.
StepResult Trainer::agree(const Computed& computed, const RankNews& news) const {
  const TraceScope scope("agreement", kNoUnit);
  constexpr int kFirstSignal = 10;  // one value for each
  constexpr int64_t kFirstLoss = kFirstSignal + int64_t{kStopSignals.size()};
  const auto num_micro = static_cast<int64_t>(computed.losses.size());
  at::Tensor values = at::zeros({kFirstLoss + 2 * num_micro * world_.size}, at::kDouble);
  double* mine = values.mutable_data_ptr<double>();
  mine[0] = model_.place.counts_losses ? computed.loss : 0;
  mine[1] = world_.rank == 0 && news.wants_stop ? 1 : 0;
  mine[2] = news.save_written ? 1 : 0;
  const uint64_t batch_hash = model_.place.counts_batches ? computed.batch_hash : 0;
  mine[3] = static_cast<double>(batch_hash & 0xffffffff);
  mine[4] = static_cast<double>(batch_hash >> 32);
  mine[5] = world_.rank == 0 && news.wants_save ? 1 : 0;
  mine[6] = world_.rank == 0 && news.stop_file ? 1 : 0;
  mine[8] = computed.preference.margin;
  mine[9] = computed.preference.correct;
  mine[7] = std::isfinite(computed.grad_norm) ? 0 : 1;
  for (size_t i = 0; i < kStopSignals.size(); ++i) mine[kFirstSignal + i] = news.signal == kStopSignals[i] ? 1 : 0;
  for (int64_t micro = 0; micro < num_micro; ++micro) {
    double* place = mine + kFirstLoss + 2 * (world_.rank * num_micro + micro);
    place[0] = static_cast<double>(batches_.position(step_, micro));
    place[1] = computed.losses[static_cast<size_t>(micro)];
  }
  values = sum_over_ranks(world_, values);
  const double* sums = values.const_data_ptr<double>();
  StepResult result;
  result.loss = num_micro == 0 ? sums[0] : sum_by_position(values.narrow(0, kFirstLoss, 2 * num_micro * world_.size));
  result.grad_norm = agreed_norm(computed.grad_norm, sums[7] > 0);
  if (objective_) {
    const auto pairs = static_cast<double>(batches_.num_targets(step_));
    result.preference = {sums[8] / pairs, sums[9] / pairs};
  }
  if (scaler_) result.loss_scale = scaler_->current_scale();
  if (computed.expert_counts_LE.defined()) {
    result.fullest_expert = fullest_share(computed.expert_counts_LE);
    result.busiest_experts = busiest_share(computed.expert_counts_LE, model_.place.num_expert);
  }
  result.stop = sums[1] > 0;
  result.save = sums[5] > 0;
  result.saves_written = sums[2] == world_.size;
  result.stop_file = sums[6] > 0;
  result.batch_hash = static_cast<uint64_t>(sums[3]) + (static_cast<uint64_t>(sums[4]) << 32);
  for (size_t i = kStopSignals.size(); i-- > 0;) {
    if (sums[kFirstSignal + i] > 0) result.signal = kStopSignals[i];
  }
  return result;
}

bool Trainer::is_due_for_check() const {
  return check_.compute_twice_every > 0 && (step_ + 1) % check_.compute_twice_every == 0;
}

// The same bits twice are the truth. If the first two computations differ, a third one decides.
StepResult Trainer::check_again(const StepResult& first, Computed& computed, const RankNews& news) {
  computed = compute();
  StepResult second = agree(computed, news);
  if (same_bits(first, second)) {
    second.recomputed = StepResult::Recomputed::kEqual;
    return second;
  }
  second.recomputed = StepResult::Recomputed::kTransient;
  if (!is_finite(first)) return second;
  computed = compute();
  StepResult third = agree(computed, news);
  third.recomputed = StepResult::Recomputed::kTransient;
  if (same_bits(third, first) || same_bits(third, second)) return third;
  throw AgreedError(ErrorCode::kInternal,
                    "[train] step " + std::to_string(step_ + 1) + ": got three different results of one computation (" +
                        numbers_text(first) + "; " + numbers_text(second) + "; " + numbers_text(third) +
                        "), expected equal ones. A machine computes wrongly: test its memory and processors.",
                    /*told_elsewhere=*/world_.rank != 0);
}

// Backwards go from the last layer to the first, and what is not finite goes with them: the last parameter with such a
// gradient is where it began. COLLECTIVE.
std::string Trainer::origin_of_overflow() const {
  const std::vector<WholeTensor> whole = whole_tensors(model_);
  const auto leaves = named_parameters(*model_.decoder);
  const std::map<std::string, at::Tensor> mine(leaves.begin(), leaves.end());  // of this rank's stages
  int64_t last = -1;
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto own = mine.find(whole[i].name);
    if (own == mine.end()) continue;
    const at::Tensor& gradient = own->second.grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) last = static_cast<int64_t>(i);
  }
  for (const std::string& other : gather_strings(world_, std::to_string(last)))
    last = std::max<int64_t>(last, std::stoll(other));
  return last < 0 ? "" : whole[static_cast<size_t>(last)].name;
}

void Trainer::give_up(const StepResult& result) const {
  if (config_.on_nonfinite != "stop") return;
  const std::string origin = std::isfinite(result.loss) ? origin_of_overflow() : "";
  throw AgreedError(ErrorCode::kNonFinite,
                    "[train] step " + std::to_string(step_ + 1) + ": " + numbers_text(result) +
                        ": not finite, computed twice" +
                        (origin.empty() ? "" : ", beginning with the gradient of " + origin) +
                        (scaler_ && !origin.empty() ? " at the lowest loss scale" : "") +
                        ". Lower train.lr, lengthen train.warmup_steps, set train.clip, or "
                        "choose train.on_nonfinite = \"skip\" or \"rollback\".",
                    /*told_elsewhere=*/world_.rank != 0);
}

void Trainer::set_num_steps(int64_t steps) {
  if (step_ > schedule_.warmup_steps || steps < schedule_.warmup_steps) {
    throw Error(ErrorCode::kInternal, "[train] the number of steps can change during the warm-up only");
  }
  schedule_.steps = steps;
}

}  // namespace fsdp::train
