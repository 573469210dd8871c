#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/config/config.h"

namespace fsdp::train {

// Proof that a model computes here what it computes elsewhere: values of another implementation, compared with those of
// this one, sharded over the ranks of the world. File layouts and tolerances: docs/parity.md.
struct ParityOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> expected;  // logits, loss and gradients of one batch
  std::optional<std::filesystem::path> packed;    // the same of one row that holds several documents
  std::optional<std::filesystem::path> curve;     // folder: losses, norms and final parameters of some steps
  ShardConfig shard;  // strategy, replicas, precision (fp32, bf16, fp16, o1 or fp8) and what belongs to fp8
  c10::Device device = c10::kCPU;
  int64_t microbatches = 1;     // per step of the curve
  double tolerance_factor = 1;  // multiplies every tolerance
};

// One quantity. `abs` is the largest absolute difference; `rel` is that divided by the largest expected magnitude.
struct ParityRow {
  std::string quantity;
  double abs = 0;
  double rel = 0;
  std::optional<double> abs_tolerance;
  std::optional<double> rel_tolerance;

  bool passed() const;
};

struct ParityReport {
  std::string source;  // the file compared with
  std::vector<ParityRow> rows;

  bool passed() const;
};

// Throws Error(kUsage) for a precision that cannot be compared, and for a curve in another one than fp32 and bf16, of
// which there are none.
void check_parity_options(const ParityOptions& options);

// COLLECTIVE; every rank returns the same. One report per file asked for. Rows of the batch (documents, when packed)
// are dealt out to the ranks; a rank without any runs the first one with no targets, which adds zero to every sum. The
// gradients compared are the reduced ones, each rank's slice with the same slice of the file; reports hold the largest
// difference over all ranks.
std::vector<ParityReport> check_parity(const ParityOptions& options, const World& world);

// Tables for people; JSON for machines.
std::string to_table(const std::vector<ParityReport>& reports);
std::string to_json(const std::vector<ParityReport>& reports);

}  // namespace fsdp::train
