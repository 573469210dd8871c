#include "fsdp/parallel/context_exchange.h"

namespace fsdp::parallel {

int64_t gathered_bytes(const ContextShape& shape, RowsHold rows) {
  const int64_t masks = rows == RowsHold::kDocuments ? shape.rows : 1;
  return shape.ranks * (2 * shape.key_numel + masks * shape.own_tokens * shape.own_tokens) * shape.element_bytes;
}

ContextExchange choose_exchange(ContextExchange wanted, const ContextShape& shape, RowsHold rows) {
  if (wanted != ContextExchange::kAuto) return wanted;
  const bool is_large = shape.ranks > 1 && gathered_bytes(shape, rows) > kMostGatheredBytes;
  return is_large ? ContextExchange::kRing : ContextExchange::kGather;
}

}  // namespace fsdp::parallel
