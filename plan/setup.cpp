#include "plan/setup.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "io/base/error.h"

namespace fsdp::plan {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw io::Error(io::ErrorKind::kUsage, "[plan] " + message); }

void expect_at_least_one(const char* what, int64_t value) {
  if (value < 1) refuse(std::string(what) + ": got " + std::to_string(value) + ", expected at least 1.");
}

// "1, 2, 4, ..., 64": at most ten.
std::string divisors_text(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t each = 1; each <= number; ++each) {
    if (number % each == 0) divisors.push_back(each);
  }
  std::string text;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (divisors.size() > 10 && i == 9) {
      text += ", ...";
      i = divisors.size() - 1;
    }
    text += (text.empty() ? "" : ", ") + std::to_string(divisors[i]);
  }
  return text;
}

std::optional<int64_t> parse_count(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

template <class Value, size_t N>
using Names = std::array<std::pair<std::string_view, Value>, N>;

template <class Value, size_t N>
Value find_by_name(const char* what, std::string_view text, const Names<Value, N>& names) {
  std::string legal;
  for (const auto& [each, value] : names) {
    if (each == text) return value;
    legal.append(legal.empty() ? "" : ", ").append(each);
  }
  refuse(std::string(what) + ": got " + io::in_quotes(text) + ", expected one of " + legal + ".");
}

template <class Value, size_t N>
std::string_view name_of(const Value& value, const Names<Value, N>& names) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.second == value; });
  return found == names.end() ? std::string_view("other") : found->first;
}

constexpr Names<PlannedPrecision, 6> kPrecisions = {{
    {"fp32", {io::DType::F32, io::DType::F32, io::DType::F32}},
    {"bf16", {io::DType::BF16, io::DType::F32, io::DType::F32}},
    {"bf16_reduce", {io::DType::BF16, io::DType::BF16, io::DType::F32}},
    {"fp16", {io::DType::F16, io::DType::F32, io::DType::F32}},
    {"fp16_reduce", {io::DType::F16, io::DType::F16, io::DType::F32}},
    {"o3", {io::DType::BF16, io::DType::BF16, io::DType::BF16}},
}};
constexpr Names<Optimizer, 9> kOptimizers = {{{"adamw", Optimizer::kAdamW},
                                              {"sgd", Optimizer::kSgd},
                                              {"sgd_momentum", Optimizer::kSgdMomentum},
                                              {"muon", Optimizer::kMuon},
                                              {"adafactor", Optimizer::kAdafactor},
                                              {"lion", Optimizer::kLion},
                                              {"schedule_free", Optimizer::kScheduleFree},
                                              {"adamw_8bit", Optimizer::kAdamW8Bit},
                                              {"adamw_compensated", Optimizer::kAdamWCompensated}}};
constexpr Names<models::Recompute, 4> kRecomputes = {{{"none", models::Recompute::kNone},
                                                      {"elementwise", models::Recompute::kElementwise},
                                                      {"gate_up", models::Recompute::kGateUp},
                                                      {"block", models::Recompute::kBlock}}};

constexpr Names<pipeline::Order, 4> kOrders = {{{"1f1b", pipeline::Order::k1F1B},
                                                {"gpipe", pipeline::Order::kGPipe},
                                                {"interleaved", pipeline::Order::kInterleaved},
                                                {"zero_bubble", pipeline::Order::kZeroBubble}}};
constexpr Names<parallel::ContextExchange, 3> kExchanges = {{{"auto", parallel::ContextExchange::kAuto},
                                                             {"gather", parallel::ContextExchange::kGather},
                                                             {"ring", parallel::ContextExchange::kRing}}};

struct NamedSizes {
  std::optional<int64_t> replicas, shards, context, tensor, experts, pipeline;

  std::optional<int64_t>* find(std::string_view axis) {
    return axis == "replicate" ? &replicas
           : axis == "shard"   ? &shards
           : axis == "cp"      ? &context
           : axis == "tp"      ? &tensor
           : axis == "ep"      ? &experts
           : axis == "pp"      ? &pipeline
                               : nullptr;
  }
};

// "replicate=8,shard=16" in any order, or "8x16".
NamedSizes parse_sizes(std::string_view text) {
  const auto nonsense = [&] {
    refuse("mesh: got " + io::in_quotes(text) +
           ", expected \"shard=16\", \"replicate=8,shard=16\" or \"8x16\"; pp, cp, tp and ep are named like these.");
  };
  NamedSizes sizes;
  if (const size_t cross = text.find('x'); cross != std::string_view::npos) {
    sizes.replicas = parse_count(text.substr(0, cross));
    sizes.shards = parse_count(text.substr(cross + 1));
    if (!sizes.replicas || !sizes.shards) nonsense();
    return sizes;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) nonsense();
    std::optional<int64_t>* size = sizes.find(part.substr(0, equals));
    if (size == nullptr || *size) nonsense();
    *size = parse_count(part.substr(equals + 1));
    if (!*size) nonsense();
  }
  return sizes;
}

// Of a setup whose ranks and sizes are checked one by one.
void check_tokens(const Setup& setup) {
  const Work& work = setup.work;
  if (work.microbatches > kMostMicrobatches)
    refuse("microbatches: got " + std::to_string(work.microbatches) + ", expected at most " +
           std::to_string(kMostMicrobatches) + " in a step of a rank. Make each of more sequences.");
  if (work.microbatch_sequences > kMostMicrobatchTokens / work.sequence_length)
    refuse("tokens of a microbatch: got " + std::to_string(work.microbatch_sequences) + " sequences of " +
           std::to_string(work.sequence_length) + ", expected at most " + std::to_string(kMostMicrobatchTokens) +
           " tokens. Take more microbatches of fewer sequences.");
  if (setup.sequence_groups() * work.microbatches > kMostStepTokens / work.microbatch_tokens())
    refuse("tokens of a step: got " + std::to_string(setup.sequence_groups()) + " x " +
           std::to_string(work.microbatches) + " microbatches of " + std::to_string(work.microbatch_tokens()) +
           ", expected at most " + std::to_string(kMostStepTokens) + " tokens. Take fewer microbatches.");
}

// As the trainer does (train/axes/axis_checks.cpp).
void check_order(const Setup& setup) {
  const bool is_interleaved = setup.order == pipeline::Order::kInterleaved;
  const std::string stages = "stages per rank: got " + std::to_string(setup.stages_per_rank);
  if (setup.stages_per_rank > 1 && (setup.pipeline == 1 || !is_interleaved))
    refuse(stages + " with pp " + std::to_string(setup.pipeline) + " and pipeline schedule " +
           std::string(name(setup.order)) + ", expected 1, or a pp of 2 or more and interleaved.");
  if (setup.pipeline == 1) return;
  if (is_interleaved && setup.stages_per_rank == 1)
    refuse(stages + " with pipeline schedule interleaved, expected 2 or more.");
  if (is_interleaved && setup.work.microbatches % setup.pipeline != 0)
    refuse("pipeline schedule: got interleaved with " + std::to_string(setup.work.microbatches) +
           " microbatches, expected a multiple of the " + std::to_string(setup.pipeline) + " ranks along pp.");
  if (setup.order == pipeline::Order::kZeroBubble && setup.work.recompute != models::Recompute::kNone)
    refuse("pipeline schedule: got zero_bubble with recompute " + std::string(name(setup.work.recompute)) +
           ", which computes all gradients of a layer at once, expected none. Take 1f1b, or recompute none.");
}

}  // namespace

bool Setup::reshards() const {
  if (!reshard_after_forward) return traits(strategy).reshard_after_forward;
  const auto* group = std::get_if<int64_t>(&*reshard_after_forward);
  return group != nullptr ? *group > 1 : std::get<bool>(*reshard_after_forward);
}

int64_t Setup::forward_group() const {
  const auto* group = reshard_after_forward ? std::get_if<int64_t>(&*reshard_after_forward) : nullptr;
  return group != nullptr ? *group : reshards() ? shards : 1;
}

int64_t Setup::activation_bytes() const {
  return static_cast<int64_t>(io::item_size(precision.param.value_or(io::DType::F32)));
}

pipeline::Shape Setup::pipeline_shape() const {
  return {static_cast<int>(pipeline), static_cast<int>(stages_per_rank), static_cast<int>(work.microbatches)};
}

void MeshShape::apply_to(Setup& setup) const {
  setup.replicas = replicas;
  setup.shards = shards * context * experts;
  setup.context = context;
  setup.tensor = tensor;
  setup.experts = experts;
  setup.pipeline = pipeline;
}

void check(const Setup& setup) {
  expect_at_least_one("replicas", setup.replicas);
  expect_at_least_one("shards", setup.shards);
  expect_at_least_one("tp", setup.tensor);
  expect_at_least_one("cp", setup.context);
  expect_at_least_one("ep", setup.experts);
  expect_at_least_one("pp", setup.pipeline);
  expect_at_least_one("stages per rank", setup.stages_per_rank);
  expect_at_least_one("ranks per node", setup.node_size);
  expect_at_least_one("microbatches", setup.work.microbatches);
  expect_at_least_one("sequences of a microbatch", setup.work.microbatch_sequences);
  expect_at_least_one("sequence length", setup.work.sequence_length);
  expect_at_least_one("recompute every", setup.work.recompute_every);
  if (setup.shards % setup.context != 0)
    refuse("cp: got " + std::to_string(setup.context) + " in shard groups of " + std::to_string(setup.shards) +
           " ranks, expected a divisor: " + divisors_text(setup.shards) + ".");
  if (setup.shards % (setup.context * setup.experts) != 0)
    refuse("ep: got " + std::to_string(setup.experts) + " in shard groups of " +
           std::to_string(setup.shards / setup.context) +
           " ranks, expected a divisor: " + divisors_text(setup.shards / setup.context) + ".");
  const bool has_many = std::max({setup.replicas, setup.shards, setup.tensor, setup.pipeline}) > kMostRanks;
  if (has_many || setup.data_ranks() > kMostRanks || setup.world() > kMostRanks)
    refuse("world: got " + std::to_string(setup.replicas) + " x " + std::to_string(setup.shards) +
           (setup.tensor > 1 ? " x " + std::to_string(setup.tensor) : std::string()) + " ranks" +
           (setup.pipeline > 1 ? " in each of " + std::to_string(setup.pipeline) + " stages" : std::string()) +
           ", expected at most " + std::to_string(kMostRanks) + ".");
  check_tokens(setup);
  if (traits(setup.strategy).mesh == MeshNeed::kShardAndReplicateAxis && setup.replicas == 1)
    refuse("strategy " + std::string(fsdp::name(setup.strategy)) + " with one replica of " +
           std::to_string(setup.shards) + " shards: it needs an axis 'replicate'. Set the mesh to " +
           "replicate=R,shard=S with R one of " + divisors_text(setup.shards) +
           " above 1, or take optim_grads_params.");
  if (setup.transport == Transport::kSharedMemory && setup.world() > setup.node_size)
    refuse("transport shm: got " + std::to_string(setup.world()) + " ranks on nodes of " +
           std::to_string(setup.node_size) + ", expected all on one node. Use two_level, or larger nodes.");
  check_order(setup);
  const int64_t group = setup.forward_group();
  const int64_t of_experts = setup.shards * setup.tensor / setup.experts;
  if (setup.reshards() && setup.experts > 1 && group != setup.shards && of_experts % group != 0)
    refuse("reshard after forward: got groups of " + std::to_string(group) + " ranks, and experts in shard groups of " +
           std::to_string(of_experts) + ", expected a divisor of both: " + divisors_text(of_experts) + ".");
  if (group < 1 || setup.shards % group != 0)
    refuse("reshard after forward: got groups of " + std::to_string(group) + " ranks in shard groups of " +
           std::to_string(setup.shards) + ", expected a divisor: " + divisors_text(setup.shards) + ".");
  try {
    schedule::check(setup.schedule);
  } catch (const std::invalid_argument& error) {
    throw io::Error(io::ErrorKind::kUsage, error.what());
  }
}

MeshShape parse_mesh(std::string_view text, int64_t world) {
  if (world < 0) refuse("world: got " + std::to_string(world) + ", expected at least 1.");
  const NamedSizes sizes = parse_sizes(text);
  const int64_t context = sizes.context.value_or(1), tensor = sizes.tensor.value_or(1);
  const int64_t experts = sizes.experts.value_or(1), pipeline = sizes.pipeline.value_or(1);
  for (const auto& size : {sizes.replicas, sizes.shards, sizes.context, sizes.tensor, sizes.experts, sizes.pipeline}) {
    if (size.value_or(1) > kMostRanks)
      refuse("mesh " + std::string(text) + ": got " + std::to_string(*size) + " ranks, expected at most " +
             std::to_string(kMostRanks) + ".");
  }
  if (world == 0) return {sizes.replicas.value_or(1), sizes.shards.value_or(1), context, tensor, experts, pipeline};
  if (static_cast<double>(context) * static_cast<double>(tensor) * static_cast<double>(experts) *
          static_cast<double>(pipeline) >
      static_cast<double>(world))
    refuse("mesh " + std::string(text) + ": got more than " + std::to_string(world) +
           " ranks along its axes, expected sizes that multiply to " + std::to_string(world) + ".");
  const int64_t given = sizes.replicas.value_or(1) * sizes.shards.value_or(1) * context * tensor * experts * pipeline;
  const bool whole = sizes.replicas && sizes.shards;
  if (given > world || world % given != 0 || (whole && given != world))
    refuse("mesh " + std::string(text) + ": got " + std::to_string(given) + " for " + std::to_string(world) +
           " ranks, expected sizes that multiply to " + std::to_string(world) + ". Divisors: " + divisors_text(world) +
           ".");
  return {sizes.replicas.value_or(sizes.shards ? world / given : 1),
          sizes.shards.value_or(world / given),
          context,
          tensor,
          experts,
          pipeline};
}

PlannedPrecision parse_planned_precision(std::string_view text) { return find_by_name("precision", text, kPrecisions); }

std::string name(const PlannedPrecision& precision) { return std::string(name_of(precision, kPrecisions)); }

Optimizer parse_optimizer(std::string_view text) { return find_by_name("optimizer", text, kOptimizers); }

std::string_view name(Optimizer optimizer) { return name_of(optimizer, kOptimizers); }

std::string_view name(StatePlace place) {
  switch (place) {
    case StatePlace::kHost:
      return "on the host";
    case StatePlace::kDisk:
      return "on a disk";
    case StatePlace::kMemory:
      break;
  }
  return "in memory";
}

bool has_owners(Optimizer optimizer) { return optimizer == Optimizer::kMuon || optimizer == Optimizer::kAdafactor; }

int64_t state_bytes(Optimizer optimizer, int64_t numel, int64_t element_bytes) {
  switch (optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kMuon:
    case Optimizer::kAdafactor:
    case Optimizer::kScheduleFree:
      return 2 * numel * element_bytes;
    case Optimizer::kSgd:
      return 0;
    case Optimizer::kSgdMomentum:
    case Optimizer::kLion:
      return numel * element_bytes;
    case Optimizer::kAdamWCompensated:
      return 3 * numel * element_bytes;
    case Optimizer::kAdamW8Bit:  // two codes, and two fp32 scales for each 256; of bf16 weights also eight more bits
      return (element_bytes == 2 ? 3 : 2) * numel + 8 * ((numel + 255) / 256);
  }
  return 0;
}

models::Recompute parse_recompute(std::string_view text) { return find_by_name("recompute", text, kRecomputes); }

pipeline::Order parse_order(std::string_view text) { return find_by_name("pipeline schedule", text, kOrders); }

std::string_view name(pipeline::Order order) { return name_of(order, kOrders); }

parallel::ContextExchange parse_context_exchange(std::string_view text) {
  return find_by_name("cp exchange", text, kExchanges);
}

std::string_view name(parallel::ContextExchange exchange) { return name_of(exchange, kExchanges); }

std::string_view name(models::Recompute recompute) { return name_of(recompute, kRecomputes); }

int64_t parse_bytes(std::string_view text) {
  static constexpr Names<double, 10> kUnits = {{{"", 1},
                                                {"B", 1},
                                                {"KB", 1e3},
                                                {"MB", 1e6},
                                                {"GB", 1e9},
                                                {"TB", 1e12},
                                                {"KiB", 1024.0},
                                                {"MiB", 1048576.0},
                                                {"GiB", 1073741824.0},
                                                {"TiB", 1099511627776.0}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto found = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& each) { return each.first == unit; });
  const double bytes = found == kUnits.end() ? -1 : number * found->second;
  if (error != std::errc() || !(bytes >= 0) || bytes > 9e18)
    refuse("bytes: got " + io::in_quotes(text) + ", expected a number and a unit, such as 80GiB or 80GB.");
  return static_cast<int64_t>(std::llround(bytes));
}

}  // namespace fsdp::plan
