#include "fsdp/pipeline/order.h"

#include <algorithm>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::pipeline {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, "[pipeline] " + message); }

// The k-th forward of a rank, or the k-th backward, which takes its stages from the last: as many microbatches as there
// are ranks go through one stage before the next one has its turn.
Turn turn(const Shape& shape, int rank, Pass pass, int k) {
  const int round = shape.ranks * shape.stages_per_rank;
  const int place = k % round / shape.ranks;
  const int own = pass == Pass::kForward ? place : shape.stages_per_rank - 1 - place;
  return {pass, own * shape.ranks + rank, k / round * shape.ranks + k % shape.ranks};
}

int forwards_ahead(Order order, const Shape& shape, int rank) {
  const int all = shape.microbatches * shape.stages_per_rank, later = shape.ranks - 1 - rank;
  if (order == Order::kGPipe) return all;
  if (order != Order::kInterleaved) return std::min(all, later);
  return std::min(all, 2 * later + (shape.stages_per_rank - 1) * shape.ranks);
}

}  // namespace

void check(const Shape& shape) {
  const auto text = [](int number) { return std::to_string(number); };
  if (shape.ranks < 1 || shape.stages_per_rank < 1 || shape.microbatches < 1)
    refuse("got " + text(shape.ranks) + " ranks, " + text(shape.stages_per_rank) + " stages on each and " +
           text(shape.microbatches) + " microbatches, expected at least 1 of each.");
}

void check(Order order, const Shape& shape) {
  const auto text = [](int number) { return std::to_string(number); };
  check(shape);
  if (order != Order::kInterleaved) {
    if (shape.stages_per_rank != 1)
      refuse("got " + text(shape.stages_per_rank) +
             " stages on each rank, expected 1 for this order. Use pipeline::Order::kInterleaved.");
    return;
  }
  const int below = shape.microbatches / shape.ranks * shape.ranks;
  if (shape.microbatches != below)
    refuse("got " + text(shape.microbatches) + " microbatches for " + text(shape.ranks) +
           " ranks, expected a multiple of that for interleaved stages: " + (below > 0 ? text(below) + " or " : "") +
           text(below + shape.ranks) + ".");
}

std::vector<Turn> turns_of(Order order, const Shape& shape, int rank) {
  const int all = shape.microbatches * shape.stages_per_rank, ahead = forwards_ahead(order, shape, rank);
  std::vector<Turn> turns;
  for (int k = 0; k < ahead; ++k) turns.push_back(turn(shape, rank, Pass::kForward, k));
  for (int k = 0; k < all; ++k) {
    if (ahead + k < all) turns.push_back(turn(shape, rank, Pass::kForward, ahead + k));
    turns.push_back(turn(shape, rank, Pass::kBackward, k));
    if (is_split(order, rank) && k >= rank) turns.push_back({Pass::kWeights, rank, k - rank});
  }
  if (!is_split(order, rank)) return turns;
  for (int k = std::max(0, all - rank); k < all; ++k) turns.push_back({Pass::kWeights, rank, k});
  return turns;
}

bool is_split(Order order, int stage) { return order == Order::kZeroBubble && stage > 0; }

std::vector<Turn> forward_turns_of(const Shape& shape, int rank) {
  std::vector<Turn> turns;
  for (int first = 0; first < shape.microbatches; first += shape.ranks) {
    const int last = std::min(first + shape.ranks, shape.microbatches);
    for (int stage = rank; stage < shape.stages(); stage += shape.ranks) {
      for (int microbatch = first; microbatch < last; ++microbatch)
        turns.push_back({Pass::kForward, stage, microbatch});
    }
  }
  return turns;
}

}  // namespace fsdp::pipeline
