#include "train/loop/run_state.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "io/base/hash.h"
#include "io/hub/companion_files.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "train/base/format.h"
#include "train/config/config_file.h"
#include "train/config/lr_schedule.h"
#include "train/config/option_table.h"
#include "train/config/precision_checks.h"
#include "train/data/data_splits.h"

namespace fsdp::train {
namespace {

// These may differ between a run and its continuation, and say nothing about what it computes.
bool is_incidental(const std::string& name) {
  return name.rfind("checkpoint.", 0) == 0 || name.rfind("check.", 0) == 0 || name.rfind("output.", 0) == 0 ||
         name.rfind("sample.", 0) == 0 || name == "train.log_every" || name == "train.peak_tflops";
}

int64_t integer(checkpoint::StateSource& source, const std::string& key) {
  const auto text = source.value(key);
  char* end = nullptr;
  const int64_t number = text ? std::strtoll(text->c_str(), &end, 10) : -1;
  if (!text || text->empty() || *end != '\0' || number < 0) {
    throw Error(ErrorCode::kCheckpoint, "[checkpoint] run: " + key + ": got " + (text ? "'" + *text + "'" : "nothing") +
                                            ", expected a number. Resume from a checkpoint of `fsdp train`.");
  }
  return number;
}

std::vector<std::string> differences(const Config& before, const Config& now) {
  std::vector<std::string> list;
  for (const Option& option : option_table()) {
    const std::string was = option.value(before);
    const std::string is = option.value(now);
    if (was != is && !is_incidental(option.name)) list.push_back(option.name + " was " + was + ", is " + is);
  }
  return list;
}

// A branch goes on where its stem ended if its schedule has the stem's learning rate there: its decay begins later.
std::optional<std::string> rate_jump(const Config& before, const Config& now, int64_t step) {
  if (step == 0 || now.train.fit_minutes > 0) return std::nullopt;
  const double was = make_schedule(resolve_tokens(before)).at(step - 1);
  const double is = make_schedule(resolve_tokens(now)).at(step - 1);
  if (std::abs(was - is) <= 1e-9 * std::max(was, is)) return std::nullopt;
  return format_text("the learning rate jumps: step %lld had %.4g, and would have had %.4g by this schedule",
                     static_cast<long long>(step), was, is);
}

// Between fp32 main weights any precision may follow another.
void check_weights_kept_alike(const Config& before, const Config& now) {
  if (keeps_narrow_weights(before.shard) == keeps_narrow_weights(now.shard)) return;
  throw Error(ErrorCode::kCheckpoint, "[checkpoint] shard.precision: got a checkpoint of " + before.shard.precision +
                                          ", expected one of " + now.shard.precision +
                                          ": o3 has bf16 weights and what rounding took from them, all others fp32 "
                                          "weights. Set shard.precision=" +
                                          before.shard.precision +
                                          " to go on; to change it start a new run "
                                          "with model.path.");
}

// Numbers of tokens are turned into steps of one size; those that are done had another.
void check_batch_kept(const Config& before, const Config& now) {
  const bool counts_tokens = now.train.max_tokens > 0 || now.train.warmup_tokens > 0;
  if (!counts_tokens || before.train.batch_sequences == now.train.batch_sequences) return;
  throw Error(ErrorCode::kCheckpoint,
              "[checkpoint] train.batch_sequences: got " + std::to_string(now.train.batch_sequences) + ", expected " +
                  std::to_string(before.train.batch_sequences) +
                  " as in the checkpoint, because train.max_tokens and train.warmup_tokens count by it. To change it, "
                  "give train.steps and train.warmup_steps instead of them.");
}

std::optional<Config> stored_config(checkpoint::StateSource& source) {
  try {
    return parse_config(source.value("config").value_or(""));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

RunState::RunState(const Config& config, Identity identity, Trainer& trainer, PackedBatches& batches)
    : config_(config),
      identity_(std::move(identity)),
      trainer_(trainer),
      batches_(batches),
      spikes_(trainer.spikes()) {}

void RunState::save(checkpoint::StateSink& sink) {
  sink.value("step", std::to_string(trainer_.steps_done()));
  sink.value("consumed_sequences", std::to_string(batches_.consumed(trainer_.steps_done())));
  sink.value("schedule_steps", std::to_string(trainer_.schedule().steps));
  sink.value("last_steps", trainer_.spikes().to_json());
  if (!trainer_.fp8_scales().empty()) sink.value("fp8_scales", trainer_.fp8_scales().text());
  sink.value("threads", std::to_string(at::get_num_threads()));
  sink.value("data", identity_.data);
  sink.value("config", config_to_toml(config_));
  if (config_.optimizer.name == "schedule_free")
    sink.value("schedule_free_beta1", format_text("%.17g", config_.train.beta1));
  sink.value("model_config", identity_.model_config);
  if (!identity_.adapter_config.empty()) sink.value("adapter_config", identity_.adapter_config);
  if (!identity_.base.empty()) sink.value("base", identity_.base);
  if (identity_.tokenizer == byte_tokenizer::kName) {
    sink.value(byte_tokenizer::kMarkerFile, byte_tokenizer::marker_json());
  } else if (const auto files = tokenizer_folder(batches_.data().dataset()); !files.empty()) {
    sink.value("tokenizer_folder", std::filesystem::absolute(files).native());
    if (tokenizer_hashes_.empty()) tokenizer_hashes_ = io::identify_files(io::tokenizer_files(files));
    sink.value("tokenizer_files", tokenizer_hashes_);
  }
}

void RunState::load(checkpoint::StateSource& source) {
  step_ = integer(source, "step");
  consumed_ = integer(source, "consumed_sequences");
  schedule_steps_ = integer(source, "schedule_steps");
  fp8_scales_ = source.value("fp8_scales").value_or("");
  spikes_.restore(source.value("last_steps").value_or(""));
  const std::string data = source.value("data").value_or("");
  if (data != identity_.data) {
    throw Error(ErrorCode::kData, "[checkpoint] data: got " + identity_.data + ", expected that of the checkpoint, " +
                                      data +
                                      ". Give data.path, data.sequence_length and train.seed of that run; to train on "
                                      "other data start a new run with model.path.");
  }
  check_base(source);
  std::optional<Config> before = stored_config(source);
  if (before) check_weights_kept_alike(*before, config_);
  if (before) check_batch_kept(*before, config_);
  Config now = config_;
  if (before && has_fitted_steps()) {  // both as they run
    before->train = with_fitted_steps(before->train, schedule_steps_);
    now.train = with_fitted_steps(now.train, schedule_steps_);
  }
  changed_keys_ =
      before ? differences(*before, now) : std::vector<std::string>{"the configuration was of another version of fsdp"};
  if (has_fitted_steps())
    changed_keys_.push_back("train.steps stays " + std::to_string(schedule_steps_) +
                            ": train.fit_minutes chooses it at the end of the warm-up, which is over");
  if (const auto jump = before ? rate_jump(*before, now, step_) : std::nullopt) changed_keys_.push_back(*jump);
  const std::string threads = std::to_string(at::get_num_threads());
  const std::string threads_before = source.value("threads").value_or(threads);
  if (config_.train.deterministic && threads_before != threads) {
    changed_keys_.push_back("threads were " + threads_before + ", are " + threads + ": the last bits will differ");
  }
}

// Of adapters that were saved without it, or that began with a part of it.
void RunState::check_base(checkpoint::StateSource& source) const {
  const auto base = source.value("base");
  if (!base && config_.tune.lora_init == "random") return;
  if (!base) {
    throw Error(ErrorCode::kCheckpoint,
                "[checkpoint] base: got a checkpoint whose base is whole, expected what "
                "tune.lora_init = \"" +
                    config_.tune.lora_init + "\" leaves of it. Leave that out.");
  }
  if (identity_.base.empty()) {
    throw Error(ErrorCode::kCheckpoint,
                "[checkpoint] base: got a checkpoint of adapters alone, or of a base that they began with a part of, "
                "expected one with a whole base. Set checkpoint.content, tune.method, tune.lora_init and model.path as "
                "in that run.");
  }
  if (*base == identity_.base) return;
  throw Error(ErrorCode::kCheckpoint, "[checkpoint] base: got model.path " + config_.model.path + " with tune.base " +
                                          config_.tune.base +
                                          ", expected those of the checkpoint: its adapters belong to another base. "
                                          "Give the model.path and tune.base of that run.");
}

void RunState::loaded() {
  trainer_.continue_at(step_);
  trainer_.fp8_scales().load(fp8_scales_);
  batches_.continue_at(step_, consumed_);
  trainer_.spikes() = spikes_;
  if (has_fitted_steps()) trainer_.restore_num_steps(schedule_steps_);
}

// It is chosen at the end of the warm-up, and stays.
bool RunState::has_fitted_steps() const {
  return config_.train.fit_minutes > 0 && step_ >= trainer_.schedule().warmup_steps;
}

TrainConfig with_fitted_steps(TrainConfig config, int64_t steps) {
  config.steps = steps;
  config.fit_minutes = 0;
  return config;
}

std::string describe_content(const Config& config, const PackedSplit& split) {
  std::string text = "split " + config.data.train_split + " of ";
  for (const PackedSplit::Source& source : split.sources()) {
    const bool is_first = &source == &split.sources().front();
    text += (is_first ? "" : " and ") + std::to_string(source.dataset.num_tokens()) + " tokens (" +
            io::hash_text(io::hash_file(source.dataset.folder() / "dataset.json")) + ")";
    if (split.sources().size() > 1) text += format_text(" x %.6g", source.weight);
  }
  return text;
}

std::string identify_data(const Config& config, const PackedSplit& split) {
  return describe_content(config, split) + " in sequences of " + std::to_string(split.sequence_length()) +
         ", shuffled with seed " + std::to_string(config.train.seed);
}

}  // namespace fsdp::train
