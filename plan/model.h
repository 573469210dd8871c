#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/dtype.h"
#include "models/config/decoder_config.h"

namespace fsdp::plan {

// In which element type a parameter is computed with: the setup's, or always its own.
enum class ComputeType { kOfPrecision, kOwn };

// What a parameter is gathered as: numbers of the type it is computed with, or fp8 numbers (Precision::gather of the
// runtime).
enum class Travel { kAsComputed, kAsFp8 };

// A parameter as fully_shard() would find it: its dtype is the main weight's.
struct PlannedParameter {
  std::string name;
  std::vector<int64_t> shape;
  io::DType dtype = io::DType::F32;
  bool trains = true;
  ComputeType compute = ComputeType::kOfPrecision;
  Travel travel = Travel::kAsComputed;
  int64_t run = 1;  // elements that no rank border cuts: of a matrix whose columns are cut over other ranks, a row's
  // Numbers of the weight that these bytes are codes of, which is whole in memory, decoded, while it is multiplied; 0:
  // a parameter that is no codes.
  int64_t coded = 0;

  int64_t numel() const;
};

// The parameters of one unit, in the module's order.
struct PlannedUnit {
  std::string name;
  std::vector<PlannedParameter> parameters;
  // What rank_part() says of it.
  int64_t layer = -1;       // of the model, whose block or part of a block it is; -1: none's
  int64_t within = -1;      // the block around it; -1: the root
  bool of_experts = false;  // of which ranks along `ep` have different ones

  int64_t num_parameters() const;  // of codes those that they stand for
  bool trains() const;             // any of them
};

// Whether the root reads some of its first parameters again behind the blocks, where it may have no others.
enum class TiedHead { kNo, kYes };

// A model that need not exist: units as the trainer makes them. A step computes with the root's first parameters
// (embedding), then with the blocks in order, then with the root's others (norm, head).
struct PlannedModel {
  std::string name;
  std::vector<PlannedUnit> blocks;
  PlannedUnit root;
  size_t num_first = 1;  // of the root's parameters; fewer if it has fewer
  TiedHead head = TiedHead::kNo;
  std::optional<models::DecoderConfig> decoder;  // what activations and FLOPs need; without it they are not planned

  int64_t num_parameters() const;
  int64_t num_units() const { return static_cast<int64_t>(blocks.size()) + 1; }
};

// The decoder of that configuration with fp32 main weights, all of which train: what `fsdp train` shards.
PlannedModel decoder_model(std::string name, const models::DecoderConfig& config);

}  // namespace fsdp::plan
