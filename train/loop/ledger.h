#pragma once

#include <cstdint>
#include <string>

#include "train/data/batch.h"

namespace fsdp::train {

// What one step was trained on and what came of it: a line of ledger.jsonl. Two runs that did the same have the same
// ledger, bit for bit.
struct LedgerEntry {
  int64_t step = 0;      // 1 for the first
  int64_t position = 0;  // sequences consumed before
  int64_t sequences = 0;
  uint64_t batch = 0;  // hash_rows() of all ranks, added up
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;   // the numbers were not finite, and the weights stayed as they were
  double loss_scale = 0;  // of fp16 training; 0: none
};

std::string to_json(const LedgerEntry& entry);

// Hash of the sequences a rank has read: each row with its place, so that the sum over rows and ranks does not depend
// on who read which, but on every token and on its place. `first`: place of row 0.
uint64_t hash_rows(const Batch& batch, int64_t first);

}  // namespace fsdp::train
