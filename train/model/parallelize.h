#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/decoder.h"
#include "train/axes/axes.h"
#include "train/axes/rank_place.h"
#include "train/axes/whole_parameter.h"
#include "train/config/config.h"

namespace fsdp::train {

struct AdapterStart;  // train/model/adapters/adapter_start.h

class DecoderPipeline;

// A decoder whose blocks are units. Parameters of `units[i]` are those whose name starts with `prefixes[i]`, except for
// the root, which is last and has the rest. Of a stage of a pipeline only its own are there.
struct ShardedModel {
  models::Decoder decoder;
  std::vector<Unit> units;
  std::vector<std::string> prefixes;
  Unit root;
  RankPlace place = {};
  std::shared_ptr<const Axes> axes = {};           // null where nothing is cut
  std::shared_ptr<DecoderPipeline> pipeline = {};  // null where all blocks are here
  std::vector<WholeTensor> of_all_stages = {};     // empty likewise
  // What adapters began with that hold a part of their base; on rank 0, which writes files. Null: nothing.
  std::shared_ptr<const AdapterStart> start = {};
};

// Where it computes: its weights, gathered, lie there, and inputs have to. Main weights may lie elsewhere.
c10::Device computing_device(const models::Decoder& decoder);

// Parameters of all stages, in the model's order, a tied weight once; for NF4 codes the weights they stand for. Local.
std::vector<WholeTensor> whole_tensors(const ShardedModel& model);

// What weights and activations are stored as: shard.precision, where fp8, which is for products only, is bf16, and o1,
// whose products are of bf16 numbers, fp32.
std::string stored_precision_name(const ShardConfig& config);
Precision stored_precision(const ShardConfig& config);
// Of most products.
at::ScalarType multiplied_type(const ShardConfig& config);

ShardOptions shard_options(const ShardConfig& config, c10::Device device = c10::kCPU);

// How the optimizer wants the blocks, and the root, to be cut: some want whole matrices in blocks, 8-bit moments whole
// blocks of numbers everywhere.
LayoutOptions block_layout(const OptimizerConfig& config);
LayoutOptions root_layout(const OptimizerConfig& config);

// COLLECTIVE. Shards a decoder over the ranks of `mesh`: each block is a unit, the embedding, the last norm and the
// head are the root's. In a stage of a pipeline an embedding that is the head too is a unit of its own, which both
// stages that have it cut alike, and a block that is alone is the root. Gradients are summed over the ranks, not
// averaged: the trainer divides the loss by the number of targets in the global batch, so that the number of ranks does
// not matter. Where the mesh has "tp" or "cp", Axes has cut and connected the decoder; where it has "ep" or "tp",
// the experts of each block are a unit within it, and cut over "ep". `blocks`: how blocks may be cut, where otherwise
// than the root.
ShardedModel parallelize(models::Decoder decoder, const Mesh& mesh, const ShardOptions& options,
                         const std::optional<LayoutOptions>& blocks = {});

// Of train.projections. Throws Error(kUsage) if "fused" is asked of a sharded decoder whose weights do not lie so that
// any projections can be computed together.
void set_projections(ShardedModel& model, const std::string& projections);

// For weights that are loaded later: equal on all ranks until then.
void zero_parameters(torch::nn::Module& module);
// A deferred decoder of such weights: made unit by unit when it is sharded.
models::Decoder deferred_zeros(const models::DecoderConfig& config);

}  // namespace fsdp::train
