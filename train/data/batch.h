#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "models/decoder.h"
#include "train/axes/rank_place.h"
#include "train/data/packed_split.h"

namespace fsdp::train {

// Where a row has the two documents of a pair: [0, chosen_end) and [chosen_end, end).
struct PairPlace {
  int64_t sequence = 0;  // of the split
  int64_t chosen_end = 0;
  int64_t end = 0;
};

// What one forward and backward of one rank works on.
struct Batch {
  at::Tensor input_ids_BT;    // int64
  at::Tensor targets_N;       // int64 [B * T], kNoTarget where nothing is predicted
  models::Sequence sequence;  // where documents start
  // Of its rows in the endless row of sequences that training consumes; empty: one after the other from the batch's.
  std::vector<int64_t> places = {};
  std::vector<PairPlace> pairs = {};  // of each row, where the split is of pairs
};

// The sequences of a split as one batch, in this order. Where `sequences` is empty: sequence 0 without targets, so that
// a rank that has no work still takes part in the collectives.
Batch make_batch(const PackedSplit& split, std::span<const int64_t> sequences);

// The same tokens and targets, with each sequence cut into `pieces` that are as long as each other, but for a token,
// and have neither attention nor positions in common. Documents end where a piece does, and go on as others.
Batch cut_sequences(Batch batch, int64_t pieces);

// The batch where the model is: ids and targets; where documents start is read on the CPU. The host does not wait.
Batch on_device(Batch batch, c10::Device device);

// What a rank has of it where sequences are cut: ids and targets of its tokens; the sequences stay described whole.
Batch part_of_sequences(Batch batch, const RankPlace& place);

// The contiguous part of `count` things that belongs to `rank` of `size`: sizes differ by one at most.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
};
Part part_of(int64_t count, int rank, int size);

// Sum of the cross entropies of all targets, fp32 scalar, differentiable; with terms, of what these make of them.
at::Tensor summed_loss(models::Decoder& model, const Batch& batch, const kernels::LossTerms& terms = {});

}  // namespace fsdp::train
