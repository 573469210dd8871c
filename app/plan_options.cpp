#include "app/plan_options.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "io/tokens/token_shards.h"
#include "plan/axes.h"
#include "plan/forecast/planned_work.h"
#include "plan/time/hardware_file.h"
#include "train/base/edit_distance.h"
#include "train/config/config_file.h"
#include "train/config/option_table.h"
#include "train/config/precision_checks.h"
#include "train/data/mixture.h"
#include "train/model/model_choice.h"
#include "train/model/planned_run.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, "[plan] " + message); }

// GPUs hold a context and the buffers of communicators beside tensors; nothing here knows how much.
constexpr int64_t kReserveOfGpu = int64_t{2} << 30;

bool has_config(const PlanOptions& options) { return !options.file.empty() || !options.overrides.empty(); }

void check_one_model(const PlanOptions& options) {
  const int given = (options.preset.empty() ? 0 : 1) + (options.model.empty() ? 0 : 1) + (has_config(options) ? 1 : 0);
  if (given == 0) refuse("got no model. Pass --preset NAME, --model config.json or a training configuration.");
  if (given > 1)
    refuse(
        "got several models, expected one of --preset, --model and a training configuration. Presets of a "
        "configuration are --model.preset=NAME.");
}

// Keys of a training configuration have a dot; what has none was meant for the planner.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (key.rfind("--", 0) == 0 && key.find('.') != std::string::npos) continue;
    CLI::App parser;
    PlanOptions ignored;
    add_plan_options(parser, ignored);
    std::string nearest = "--world";
    for (const CLI::Option* option : parser.get_options()) {
      const std::string name = option->get_name();
      if (train::edit_distance(key, name) < train::edit_distance(key, nearest)) nearest = name;
    }
    const bool is_like = train::is_near(key.substr(std::min<size_t>(2, key.size())), nearest.substr(2));
    refuse("unknown option " + io::in_quotes(key) + train::did_you_mean(is_like ? nearest : "") +
           " `fsdp plan --help` lists all.");
  }
}

// Of the data set, or of those of a mixture, which have one: the first that is there says it. 0: none is.
int64_t data_vocab_size(const std::string& data) {
  if (data.empty()) return 0;
  for (const train::MixturePart& part : train::parse_mixture(data)) {
    if (fs::exists(fs::path(part.path) / "dataset.json")) return io::read_dataset_manifest(part.path).vocab_size;
  }
  return 0;
}

// The vocabulary of a data set that is there counts, as it does in training.
train::ModelChoice choose_model(const train::Config& config) {
  const int64_t vocab_size = data_vocab_size(config.data.path);
  const bool is_inline = config.model.path.empty() && config.model.preset.empty();
  if (is_inline && config.model.vocab_size == 0 && vocab_size == 0)
    refuse("model.vocab_size: got 0, which means that of the data set, and no data set at data.path " +
           io::in_quotes(config.data.path) + ". Set model.vocab_size, or data.path to a prepared data set.");
  return train::choose_model(config.model, vocab_size, /*data_eos_id=*/-1);
}

layout::Granularity parse_granularity(const std::string& text, int64_t& block) {
  if (text == "element") return layout::Granularity::kElement;
  if (text == "row") return layout::Granularity::kRow;
  if (text == "tensor") return layout::Granularity::kTensor;
  const std::string prefix = "block:";
  if (text.rfind(prefix, 0) == 0) {
    try {
      block = std::stoll(text.substr(prefix.size()));
    } catch (const std::exception&) {
      block = 0;
    }
    if (block > 0) return layout::Granularity::kBlock;
  }
  refuse("granularity: got " + io::in_quotes(text) + ", expected element, row, tensor, or block:N with N elements.");
}

std::variant<bool, int64_t> parse_reshard(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  try {
    size_t used = 0;
    const int64_t group = std::stoll(text, &used);
    if (used == text.size()) return group;
  } catch (const std::exception&) {
  }
  refuse("reshard after forward: got " + io::in_quotes(text) + ", expected true, false, or a number of ranks.");
}

plan::Transport parse_transport(const std::string& text) {
  static constexpr std::array<std::pair<const char*, plan::Transport>, 4> kNames = {
      {{"nccl", plan::Transport::kNccl},
       {"gloo", plan::Transport::kGloo},
       {"shm", plan::Transport::kSharedMemory},
       {"two_level", plan::Transport::kTwoLevel}}};
  for (const auto& [name, transport] : kNames) {
    if (text == name) return transport;
  }
  refuse("transport: got " + io::in_quotes(text) + ", expected one of nccl, gloo, shm, two_level.");
}

Strategy strategy_named(const std::string& text) {
  try {
    return parse_strategy(text);
  } catch (const std::invalid_argument& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

// Of a model without a training configuration: large ones are trained like this.
plan::Setup usual_setup(const models::DecoderConfig& config) {
  plan::Setup setup;
  setup.precision = plan::parse_planned_precision("bf16");
  setup.work.sequence_length = std::min<int64_t>(config.max_position_embeddings, 4096);
  return setup;
}

std::string hardware_list() {
  std::string names;
  for (const std::string& name : plan::time::hardware_names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// "15T", "1.4e12", "300B".
double parse_tokens(const std::string& text) {
  static constexpr std::array<std::pair<const char*, double>, 5> kUnits = {
      {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  for (const auto& [unit, factor] : kUnits) {
    const double tokens = number * factor;
    if (end != text.c_str() && std::string(end) == unit && tokens >= 1 && tokens <= 1e18) return tokens;
  }
  refuse("tokens: got " + io::in_quotes(text) + ", expected a number from 1 to 1e18, such as 15T or 300B.");
}

// Hardware that was named, here or in the training configuration, must do; that which is assumed need not.
void resolve_time(const PlanOptions& options, const std::string& configured, PlanQuestion& question) {
  plan::SearchSpace& space = question.space;
  if (!options.timeline.empty()) question.timeline = plan::timeline_format(options.timeline);
  if (options.tokens) question.tokens = parse_tokens(*options.tokens);
  const std::string& name = options.hardware.empty() ? configured : options.hardware;
  const bool is_given = !name.empty();
  const plan::time::Hardware hardware = is_given ? plan::time::choose_hardware(name) : plan::usual_hardware(space.base);
  question.hardware_origin = is_given ? plan::HardwareOrigin::kGiven : plan::HardwareOrigin::kAssumed;
  const auto reason = plan::why_no_forecast(question.model, space.base, space.options.network, hardware);
  if (reason && (is_given || question.timeline || options.tokens)) refuse("no time of a step: " + *reason);
  if (reason) {
    question.why_no_forecast = *reason;
  } else {
    plan::predict_for(space, hardware);
  }
}

// "o3" is a precision of the weights too: those of a configuration that has it are narrow.
void apply_o3(const PlanOptions& options, const train::ShardConfig& configured, PlanQuestion& question) {
  plan::Setup& setup = question.space.base;
  const bool is_o3 = setup.precision == plan::parse_planned_precision("o3");
  if (train::keeps_narrow_weights(configured) && !is_o3)
    refuse("precision: got " + options.precision.value_or("none") +
           " with weights of o3, expected o3. Set "
           "--shard.precision instead.");
  if (setup.optimizer == plan::Optimizer::kAdamWCompensated && !is_o3)
    refuse("optimizer: got adamw_compensated with precision " + plan::name(setup.precision) +
           ", expected o3, whose weights it completes. Pass --precision o3.");
  if (!is_o3) return;
  if (setup.optimizer == plan::Optimizer::kAdamW) setup.optimizer = plan::Optimizer::kAdamWCompensated;
  std::vector<plan::PlannedUnit*> units = {&question.model.root};
  for (plan::PlannedUnit& block : question.model.blocks) units.push_back(&block);
  for (plan::PlannedUnit* unit : units) {
    for (plan::PlannedParameter& parameter : unit->parameters) parameter.dtype = io::DType::BF16;
  }
}

void apply_recompute(const std::string& text, plan::Work& work) {
  const train::Rule& rule = train::find_option("train.recompute")->rule;  // the planner's own has no offload
  if (std::find(rule.choices.begin(), rule.choices.end(), text) == rule.choices.end())
    refuse("recompute: got " + io::in_quotes(text) + ", expected " + rule.describe() + ".");
  const bool leaves = text == "offload";
  work.recompute = plan::parse_recompute(leaves ? "block" : text);
  work.block_inputs = leaves ? models::BlockInputs::kOnHost : models::BlockInputs::kKept;
}

void apply(const PlanOptions& options, plan::Setup& setup) {
  if (options.strategy) setup.strategy = strategy_named(*options.strategy);
  if (options.pipeline_schedule) setup.order = plan::parse_order(*options.pipeline_schedule);
  if (options.stages_per_rank) setup.stages_per_rank = *options.stages_per_rank;
  if (options.cp_exchange) setup.context_exchange = plan::parse_context_exchange(*options.cp_exchange);
  if (options.precision) setup.precision = plan::parse_planned_precision(*options.precision);
  if (options.optimizer) setup.optimizer = plan::parse_optimizer(*options.optimizer);
  if (setup.optimizer == plan::Optimizer::kAdamW8Bit)
    setup.granularity = layout::Granularity::kBlock, setup.block = 256;
  if (options.recompute) apply_recompute(*options.recompute, setup.work);
  if (options.reshard_after_forward) setup.reshard_after_forward = parse_reshard(*options.reshard_after_forward);
  if (options.granularity) setup.granularity = parse_granularity(*options.granularity, setup.block);
  if (options.sequence_length) setup.work.sequence_length = *options.sequence_length;
  if (options.microbatch) setup.work.microbatch_sequences = *options.microbatch;
  if (options.microbatches) setup.work.microbatches = *options.microbatches;
  if (options.recompute_every) setup.work.recompute_every = *options.recompute_every;
  if (options.busiest_experts) setup.work.busiest_experts = *options.busiest_experts;
  if (options.prefetch_depth)
    setup.schedule = schedule::Schedule::static_order(static_cast<int>(*options.prefetch_depth));
  if (options.transport) {
    setup.transport = parse_transport(*options.transport);
    setup.copies = plan::GatheredCopies::kOnePerHost;  // what ranks that share memory do, unless told otherwise
  }
}

}  // namespace

void add_plan_options(CLI::App& parser, PlanOptions& options) {
  parser.allow_extras();
  parser.add_option("CONFIG", options.file, "training configuration (TOML)");
  parser.add_option("--preset", options.preset, "a published model; `fsdp inspect --presets` lists them");
  parser.add_option("--model", options.model, "config.json, or the folder that holds one");
  parser.add_option("--world", options.world, "number of ranks");
  parser.add_option(
      "--mesh", options.mesh,
      "shard=16, replicate=8,shard=16 or 8x16; pp=2,shard=16,cp=2,tp=8; shard=4,ep=8; one axis may be left to --world");
  parser.add_option("--pipeline-schedule", options.pipeline_schedule,
                    "of stages (pp): 1f1b, gpipe, interleaved or zero_bubble");
  parser.add_option("--stages-per-rank", options.stages_per_rank, "of an interleaved schedule");
  parser.add_option("--cp-exchange", options.cp_exchange, "of keys and values over cp: auto, gather or ring");
  parser.add_option("--busiest-experts", options.busiest_experts,
                    "rows that the rank with the busiest experts gets, over an equal share: 1 to ep");
  parser.add_option("--strategy", options.strategy, "optim_grads_params (ZeRO-3), hybrid (HSDP), ...");
  parser.add_option("--precision", options.precision,
                    "fp32, bf16, fp16, o3, or bf16_reduce, fp16_reduce: gradients travel so, too");
  parser.add_option("--optimizer", options.optimizer,
                    "adamw, sgd, sgd_momentum, muon, adafactor, lion, schedule_free or adamw_8bit");
  parser.add_option("--sequence", options.sequence_length, "tokens of a sequence");
  parser.add_option("--microbatch", options.microbatch, "sequences of a microbatch, of each rank");
  parser.add_option("--microbatches", options.microbatches, "microbatches of a step, of each rank");
  parser.add_option("--recompute", options.recompute, "none, elementwise, gate_up, block or offload");
  parser.add_option("--recompute-every", options.recompute_every, "in the first of every so many blocks");
  parser.add_option("--reshard-after-forward", options.reshard_after_forward, "true, false, or a number of ranks");
  parser.add_option("--prefetch-depth", options.prefetch_depth, "units gathered ahead");
  parser.add_option("--granularity", options.granularity, "what no rank border cuts: element, row, tensor, block:N");
  parser.add_option("--node", options.node, "ranks per node")->capture_default_str();
  parser.add_option("--rails", options.rails, "network links per node [one for each rank]");
  parser.add_option("--pod", options.network.pod_nodes, "nodes below one part of a slimmed fat tree; 0: all");
  parser.add_option("--slimming", options.network.slimming, "how much thinner the tree is above a pod")
      ->capture_default_str();
  parser.add_option("--transport", options.transport, "nccl, gloo, shm or two_level: whose scratch memory counts");
  parser.add_option("--memory", options.memory, "what a rank has, such as 80GiB");
  parser.add_option("--reserve", options.reserve, "bytes to set aside on each rank [2GiB with nccl, else 0]");
  parser.add_option("--hardware", options.hardware,
                    "that a step is timed on: " + hardware_list() + ", or a file of `fsdp plan calibrate`");
  auto* tokens = parser.add_option("--tokens", options.tokens, "of a run, such as 15T: how long it takes");
  auto* timeline =
      parser.add_option("--timeline", options.timeline, "file for a step's events: .json for ui.perfetto.dev, or .svg");
  auto* fit = parser.add_flag("--fit", options.fit,
                              "search: the setups that no other beats in time and memory, and why others lose");
  fit->excludes(tokens)->excludes(timeline);
  fit->excludes(parser.add_flag("--why", options.why, "what limits this setup, and the changes that relieve it most"));
  parser.add_option("--mtbf-hours", options.reliability.rank_mtbf_hours, "mean time between failures of a rank")
      ->capture_default_str();
  parser.add_option("--checkpoint-rate", options.checkpoint_rate, "bytes that a rank writes per second [2GB]");
  parser.add_option("--storage-rate", options.storage_rate, "bytes per second that all ranks write together at most");
  parser.add_option("--snapshot-seconds", options.reliability.snapshot_seconds,
                    "that a step waits for an asynchronous checkpoint; 0: until it is written");
  parser.add_option("--restart-seconds", options.reliability.restart_seconds, "from a failure to the next step")
      ->capture_default_str();
  parser.add_option("--svg", options.picture, "file for a picture of the memory, by part");
  parser.add_flag("--json", options.json, "for programs: bytes as integers");
}

PlanQuestion resolve(const PlanOptions& options) {
  check_overrides(options.overrides);
  check_one_model(options);
  PlanQuestion question;
  plan::Setup& setup = question.space.base;
  train::Config config;
  if (has_config(options)) config = train::load_config(options.file, options.overrides);
  const std::string default_mesh = "replicate=" + std::to_string(config.shard.replicas) +
                                   ",pp=" + std::to_string(config.mesh.pp) + ",cp=" + std::to_string(config.mesh.cp) +
                                   ",tp=" + std::to_string(config.mesh.tp) + ",ep=" + std::to_string(config.mesh.ep);
  const plan::MeshShape mesh = plan::parse_mesh(options.mesh.empty() ? default_mesh : options.mesh, options.world);
  if (has_config(options)) {
    config.shard.replicas = mesh.replicas;
    config.mesh.cp = mesh.context;
    config.mesh.tp = mesh.tensor;
    config.mesh.ep = mesh.experts;
    config.mesh.pp = mesh.pipeline;
    mesh.apply_to(setup);
    setup = train::planned_setup(config, {setup.world(), options.node});
    question.model = train::planned_model(config, choose_model(config));
  } else {
    const models::DecoderConfig decoder = options.preset.empty() ? models::read_decoder_config(options.model)
                                                                 : train::preset_named(options.preset).config;
    setup = usual_setup(decoder);
    question.model = plan::decoder_model(options.preset.empty() ? options.model : options.preset, decoder);
  }
  mesh.apply_to(setup);
  setup.node_size = options.node;
  apply(options, setup);
  apply_o3(options, config.shard, question);
  question.space.options.network = options.network;
  question.space.options.network.rails = options.rails.value_or(options.node);
  const bool on_gpu = setup.transport == plan::Transport::kNccl;
  question.space.options.reserve =
      options.reserve.empty() ? (on_gpu ? kReserveOfGpu : 0) : plan::parse_bytes(options.reserve);
  plan::check(setup);
  plan::check_axes(question.model, setup);
  question.space.memory = options.memory.empty() ? 0 : plan::parse_bytes(options.memory);
  if (options.fit && question.space.memory == 0)
    refuse("--fit: got no memory of a rank, expected --memory, such as --memory 80GiB.");
  question.space.precisions = {setup.precision};
  if (!options.precision && setup.precision == plan::parse_planned_precision("bf16"))
    question.space.precisions.push_back(plan::parse_planned_precision("bf16_reduce"));
  resolve_time(options, config.output.hardware, question);
  question.reliability = options.reliability;
  if (!options.checkpoint_rate.empty())
    question.reliability.checkpoint_bytes_per_s = static_cast<double>(plan::parse_bytes(options.checkpoint_rate));
  if (!options.storage_rate.empty())
    question.reliability.storage_bytes_per_s = static_cast<double>(plan::parse_bytes(options.storage_rate));
  return question;
}

}  // namespace fsdp::app
