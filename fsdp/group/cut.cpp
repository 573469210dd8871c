#include "fsdp/group/cut.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fsdp {

int64_t Cut::run() const {
  int64_t run = 1;
  for (auto size = static_cast<size_t>(dim); size < sizes.size(); ++size) run *= sizes[size];
  return run / ranks->size();
}

bool Cut::is_one_run() const {
  int64_t rows = 1;
  for (size_t size = 0; size < static_cast<size_t>(dim); ++size) rows *= sizes[size];
  return rows == 1;
}

namespace registry {
namespace {

// A tensor that is gone has left its address to another.
struct CutEntry {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  int64_t dim;
  std::vector<int64_t> sizes;
  std::weak_ptr<comm::Comm> ranks;
};

struct CutTable {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, CutEntry> entries;
  std::atomic<bool> has_any{false};
};

CutTable& cuts() {
  static CutTable table;
  return table;
}

}  // namespace

void add_cut(const at::Tensor& tensor, const Cut& cut) {
  CutTable& table = cuts();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.entries, [](const auto& item) { return item.second.tensor.expired(); });
  CutEntry entry{decltype(CutEntry::tensor)(tensor.getIntrusivePtr()), cut.dim, cut.sizes, cut.ranks};
  table.entries.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(entry));
  table.has_any = true;
}

std::optional<Cut> find_cut(const at::Tensor& tensor) {
  CutTable& table = cuts();
  if (!table.has_any) return std::nullopt;
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(tensor.unsafeGetTensorImpl());
  if (found == table.entries.end() || found->second.tensor.expired()) return std::nullopt;
  auto ranks = found->second.ranks.lock();
  if (!ranks) return std::nullopt;
  return Cut{found->second.dim, found->second.sizes, std::move(ranks)};
}

}  // namespace registry
}  // namespace fsdp
