#include "fsdp/group/cut.h"

#include <c10/util/accumulate.h>

#include <utility>

#include "kernels/base/tensor_table.h"

namespace fsdp {

int64_t Cut::run() const { return c10::numelements_from_dim(static_cast<int>(dim), sizes) / ranks->size(); }

bool Cut::is_one_run() const { return c10::numelements_to_dim(static_cast<int>(dim), sizes) == 1; }

namespace registry {
namespace {

// Without keeping the ranks alive.
struct CutEntry {
  int64_t dim;
  std::vector<int64_t> sizes;
  std::weak_ptr<comm::Comm> ranks;
};

kernels::TensorTable<CutEntry>& cuts() {
  static kernels::TensorTable<CutEntry> table;
  return table;
}

}  // namespace

void add_cut(const at::Tensor& tensor, const Cut& cut) { cuts().set(tensor, {cut.dim, cut.sizes, cut.ranks}); }

std::optional<Cut> find_cut(const at::Tensor& tensor) {
  auto found = cuts().find(tensor);
  auto ranks = found ? found->ranks.lock() : nullptr;
  if (!ranks) return std::nullopt;
  return Cut{found->dim, std::move(found->sizes), std::move(ranks)};
}

}  // namespace registry
}  // namespace fsdp
