#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "fsdp/layout/owners.h"
#include "fsdp/layout/planner.h"
#include "fsdp/parallel/context_exchange.h"
#include "fsdp/pipeline/order.h"
#include "fsdp/schedule/schedule.h"
#include "fsdp/strategy/strategy.h"
#include "fsdp/strategy/sum_order.h"
#include "io/base/dtype.h"
#include "models/config/activations.h"
#include "plan/model.h"

namespace fsdp::plan {

// kMuon, kAdafactor: matrices of the blocks by it, whole and dealt out to balanced owners; the rest by AdamW.
enum class Optimizer {
  kAdamW,
  kSgd,
  kSgdMomentum,
  kMuon,
  kAdafactor,
  kLion,
  kScheduleFree,
  kAdamW8Bit,
  kAdamWCompensated
};
bool has_owners(Optimizer optimizer);

// What carries collectives, as far as memory goes: NCCL (weights on GPUs); on CPUs Gloo, memory that all ranks share,
// or memory within nodes and Gloo between them.
enum class Transport { kNccl, kGloo, kSharedMemory, kTwoLevel };

// Of gathered weights, where a shard group lies in one node and shares memory (HostWeightCopies of the runtime).
enum class GatheredCopies { kPerRank, kOnePerHost };

// What one rank does with the weights if it has all of them (WholeWeights of the runtime).
enum class WholeShard { kInPlace, kCopied };

// Main weights, gradients and optimizer state (MainWeights of the runtime): where the model computes, in the memory of
// a GPU's host, or on a disk.
enum class StatePlace { kMemory, kHost, kDisk };
std::string_view name(StatePlace place);  // "in memory", "on the host", "on a disk"

// Beside the optimizer's state (fsdp::Ema of the runtime).
enum class Averages { kNone, kEma };

// Element types as in fsdp::Precision; unset: the main weight's own.
struct PlannedPrecision {
  std::optional<io::DType> param;
  std::optional<io::DType> reduce;
  std::optional<io::DType> accumulate;

  bool operator==(const PlannedPrecision&) const = default;
};

// What one rank computes in a step.
struct Work {
  int64_t microbatches = 1;
  int64_t microbatch_sequences = 1;
  int64_t sequence_length = 4096;
  models::Recompute recompute = models::Recompute::kNone;
  int64_t recompute_every = 1;  // of the first of every so many blocks
  models::BlockInputs block_inputs = models::BlockInputs::kKept;
  // Rows that the rank with the busiest experts gets, over an equal share. Time counts them, memory an equal share.
  double busiest_experts = 1;

  int64_t microbatch_tokens() const { return microbatch_sequences * sequence_length; }
};

// How a model is sharded and trained. The mesh is pipeline x replicas x shards x tensor; ranks along `tensor`, which
// share each layer, are neighbours, of a shard group each `context` neighbours share their sequences, and each
// `experts` neighbours have all experts among them.
struct Setup {
  int64_t replicas = 1;
  int64_t shards = 1;
  int64_t tensor = 1;
  int64_t context = 1;  // context x experts divides shards
  int64_t experts = 1;
  int64_t pipeline = 1;                            // ranks along `pp`: each has a stage of the model, or several
  int64_t stages_per_rank = 1;                     // stage s is on the rank s % pipeline of `pp`
  pipeline::Order order = pipeline::Order::k1F1B;  // of the stages' turns
  parallel::ContextExchange context_exchange = parallel::ContextExchange::kAuto;
  Strategy strategy = Strategy::kOptimGradsParams;
  SumOrder sum_order = SumOrder::kAsTheyCome;
  // As in fsdp::ShardOptions: true, weights rest sharded between forward and backward; false, they stay; n, they rest
  // sharded between n neighbours. Unset: what the strategy says.
  std::optional<std::variant<bool, int64_t>> reshard_after_forward;
  PlannedPrecision precision;
  layout::Granularity granularity = layout::Granularity::kElement;
  int64_t block = 1;  // elements, with Granularity::kBlock
  layout::Owners owners = layout::Owners::kInOrder;
  Optimizer optimizer = Optimizer::kAdamW;
  Averages averages = Averages::kNone;
  ReduceTiming replica_reduce = ReduceTiming::kLastMicrobatch;
  schedule::Schedule schedule;
  Transport transport = Transport::kNccl;
  GatheredCopies copies = GatheredCopies::kPerRank;
  WholeShard whole_shard = WholeShard::kInPlace;
  StatePlace state = StatePlace::kMemory;
  int64_t node_size = 8;  // ranks per node; the last node may be smaller
  Work work;

  int64_t stage_ranks() const { return replicas * shards * tensor; }  // of each stage
  int64_t world() const { return pipeline * stage_ranks(); }
  int64_t num_stages() const { return pipeline * stages_per_rank; }
  int64_t data_ranks() const { return replicas * shards; }                   // that hold parts of one whole model
  int64_t sequence_groups() const { return replicas * (shards / context); }  // of ranks with sequences of their own
  // Tokens of a microbatch that a rank along `context` has, between layers in parts over `tensor`.
  int64_t rank_tokens() const { return work.microbatch_tokens() / context; }
  int64_t activation_bytes() const;  // of an element
  bool reshards() const;             // after a forward
  int64_t forward_group() const;     // ranks between which weights rest then; 1: they stay
  pipeline::Shape pipeline_shape() const;
  int64_t tokens_per_step() const { return sequence_groups() * work.microbatches * work.microbatch_tokens(); }
};

inline constexpr int64_t kAverageBytes = 4;  // of an element, with Averages::kEma
inline constexpr int64_t kMostRanks = 16384;
// Of a step of one rank; of one microbatch; of a step of all ranks. Above them bytes and turns do not fit their types.
inline constexpr int64_t kMostMicrobatches = 1000000, kMostMicrobatchTokens = int64_t{1} << 32,
                         kMostStepTokens = 1000000000000000;

// Throws io::Error(kUsage) that says what would be legal: sizes below 1, more ranks, microbatches or tokens than above,
// a hybrid strategy without replicas, a forward group that does not divide the shard group, a schedule that makes no
// sense.
void check(const Setup& setup);

pipeline::Order parse_order(std::string_view text);  // "1f1b", "gpipe", "interleaved", "zero_bubble"
std::string_view name(pipeline::Order order);
parallel::ContextExchange parse_context_exchange(std::string_view text);  // "auto", "gather", "ring"
std::string_view name(parallel::ContextExchange exchange);

// Axes of `world` ranks from "shard=16", "pp=2,replicate=8,shard=16,cp=2,tp=4", "8x16" or "" (all in one shard group).
// Throws io::Error(kUsage) if they do not multiply to `world`, naming the divisors; world 0: whatever they give.
struct MeshShape {
  int64_t replicas;
  int64_t shards;  // those of a group with sequences of their own
  int64_t context;
  int64_t tensor;
  int64_t experts;
  int64_t pipeline;

  void apply_to(Setup& setup) const;
};
MeshShape parse_mesh(std::string_view text, int64_t world);

// "fp32"; "bf16": bf16 weights, fp32 gradients on the wire; "bf16_reduce": those in bf16, too;
// "fp16" and "fp16_reduce": likewise; "o3": all in bf16, with parameters that are bf16 themselves.
PlannedPrecision parse_planned_precision(std::string_view text);
std::string name(const PlannedPrecision& precision);
// "adamw", "sgd", "sgd_momentum", "muon", "adafactor", "lion", "schedule_free", "adamw_8bit", "adamw_compensated"
// (WeightDigits)
Optimizer parse_optimizer(std::string_view text);
std::string_view name(Optimizer optimizer);
// Bytes that it keeps of so many elements of a main weight. kMuon, kAdafactor: of what they leave to AdamW. kAdamW8Bit:
// but for what blocks of a tensor's end that are not full add, 8 bytes for each tensor; with eight more bits of bf16
// weights.
int64_t state_bytes(Optimizer optimizer, int64_t numel, int64_t element_bytes);
models::Recompute parse_recompute(std::string_view text);  // "none", "elementwise", "gate_up", "block"
std::string_view name(models::Recompute recompute);

// "80GiB", "80 GB", "1.5TiB", "4096": bytes.
int64_t parse_bytes(std::string_view text);

}  // namespace fsdp::plan
