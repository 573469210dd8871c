// In which order a rank of a pipeline runs its stages on the microbatches of a batch. Arithmetic only: every rank knows
// what every other does.
#pragma once

#include <vector>

namespace fsdp::pipeline {

enum class Order {
  kGPipe,        // all forwards, then all backwards. Huang et al. 2019
  k1F1B,         // only as many forwards ahead as keep the later stages busy, then a backward for each forward, so that
                 // rank r keeps activations of at most ranks - r microbatches. Narayanan et al. 2019 (PipeDream-Flush)
  kInterleaved,  // the same with several stages on each rank, which shorten the time that ranks wait at the start and
                 // at the end. The microbatches are a multiple of the ranks. Narayanan et al. 2021 (Megatron-LM)
  kZeroBubble,   // 1F1B whose backwards give the stage before its gradient first, and the weights theirs when the rank
                 // would wait, rank r by r microbatches later: each keeps what it saved of as many microbatches as
                 // there are ranks. Qi et al. 2023 (ZB-H1)
};

struct Shape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;

  int stages() const { return ranks * stages_per_rank; }
  int rank_of(int stage) const { return stage % ranks; }

  bool operator==(const Shape&) const = default;
};

enum class Pass {
  kForward,
  kBackward,  // whole; or that of the stage's input, where a turn of the weights follows
  kWeights,
};

// What a rank does before it does the next.
struct Turn {
  Pass pass;
  int stage;  // of the model
  int microbatch;

  bool operator==(const Turn&) const = default;
};

// Throws Error(kUsage): a number below 1.
void check(const Shape& shape);
// Likewise, and: microbatches that are no multiple, several stages for an order that has one.
void check(Order order, const Shape& shape);

// Of a checked shape. A stage's microbatches come in order, in each pass.
std::vector<Turn> turns_of(Order order, const Shape& shape, int rank);
// Whether turns of the weights follow the backwards of that stage. The first one's are whole: nobody waits for them.
bool is_split(Order order, int stage);
// Of forwards alone: any number of microbatches, with any number of stages on a rank.
std::vector<Turn> forward_turns_of(const Shape& shape, int rank);

}  // namespace fsdp::pipeline
