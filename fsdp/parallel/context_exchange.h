// How ranks along "cp" get at each other's keys and values. Without LibTorch: planners choose as the runtime does.
#pragma once

#include <cstdint>

namespace fsdp::parallel {

enum class ContextExchange {
  kAuto,    // kRing where a rank would hold more than kMostGatheredBytes for kGather
  kGather,  // all at once: context_attention()
  kRing,    // block by block: ring_attention()
};
inline constexpr int64_t kMostGatheredBytes = int64_t{256} << 20;

// A ring's scores are those of so many queries with half a block of keys.
inline constexpr int64_t kQueriesAtATime = 256;

// Of one rank's part of sequences.
struct ContextShape {
  int64_t rows = 1;
  int64_t own_tokens = 1;  // of a sequence
  int64_t key_numel = 0;   // of keys alone; values are as many
  int64_t element_bytes = 4;
  int64_t ranks = 1;  // along "cp"
};

// Whether a mask tells documents of each row apart; else one serves all rows.
enum class RowsHold { kOneDocument, kDocuments };

// Bytes of what kGather holds at a time: keys and values of all ranks, and the mask of the queries.
int64_t gathered_bytes(const ContextShape& shape, RowsHold rows);
// kGather or kRing.
ContextExchange choose_exchange(ContextExchange wanted, const ContextShape& shape, RowsHold rows);

}  // namespace fsdp::parallel
