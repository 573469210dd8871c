#include "fsdp/parallel/cut_part.h"

#include <c10/util/accumulate.h>

#include "fsdp/group/cut.h"

namespace fsdp::parallel {

int64_t CutPart::run() const { return c10::numelements_from_dim(static_cast<int>(dim), sizes) / parts; }

int64_t CutPart::num_runs() const { return c10::numelements_to_dim(static_cast<int>(dim), sizes); }

std::optional<CutPart> find_cut_part(const at::Tensor& parameter_or_leaf) {
  const auto cut = registry::find_cut(parameter_or_leaf);
  if (!cut) return std::nullopt;
  return CutPart{cut->dim, cut->sizes, cut->ranks->rank(), cut->ranks->size()};
}

}  // namespace fsdp::parallel
