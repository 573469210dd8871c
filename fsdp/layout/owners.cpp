#include "fsdp/layout/owners.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdp::layout {
namespace {

// Indices of `values`, the largest value first, equal ones in order.
template <class Value>
std::vector<size_t> descending(const std::vector<Value>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// Gives out the place with the least load, the first of equals.
class LeastLoaded {
 public:
  explicit LeastLoaded(const std::vector<double>& loads) {
    for (size_t i = 0; i < loads.size(); ++i) heap_.emplace(loads[i], i);
  }
  std::pair<double, size_t> take() {
    const auto least = heap_.top();
    heap_.pop();
    return least;
  }
  void put_back(double load, size_t place) { heap_.emplace(load, place); }

 private:
  using Entry = std::pair<double, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace

double orthogonalization_work(std::span<const int64_t> shape) {
  if (shape.size() != 2) return 0;
  const auto few = static_cast<double>(std::min(shape[0], shape[1]));
  const auto many = static_cast<double>(std::max(shape[0], shape[1]));
  return 2 * few * few * many + 2 * few * few * few + 2 * few * few * many;  // X X', its square, that times X
}

std::vector<int64_t> OwnerLoads::deal(std::span<const OwnedTensor> tensors) {
  const size_t num_bins = std::min(work_.size(), tensors.size());
  std::vector<int64_t> numels;
  for (const OwnedTensor& tensor : tensors) numels.push_back(tensor.numel);
  std::vector<size_t> bin_of(tensors.size());
  std::vector<double> bin_work(num_bins);
  LeastLoaded bins{std::vector<double>(num_bins)};
  for (const size_t i : descending(numels)) {
    const auto [load, bin] = bins.take();
    bin_of[i] = bin;
    bin_work[bin] += tensors[i].work;
    bins.put_back(load + static_cast<double>(numels[i]), bin);
  }
  std::vector<int64_t> owner_of_bin(num_bins);
  std::vector<char> is_taken(work_.size());
  for (const size_t bin : descending(bin_work)) owner_of_bin[bin] = next_owner(bin_work[bin], is_taken);
  std::vector<int64_t> result;
  for (const size_t bin : bin_of) result.push_back(owner_of_bin[bin]);
  return result;
}

int64_t OwnerLoads::next_owner(double work, std::vector<char>& is_taken) {
  std::vector<int64_t>& counts = counts_.try_emplace(work, work_.size()).first->second;
  size_t best = work_.size();
  for (size_t i = 0; i < work_.size(); ++i) {
    if (is_taken[i]) continue;
    if (best == work_.size() || std::pair(counts[i], work_[i]) < std::pair(counts[best], work_[best])) best = i;
  }
  is_taken[best] = 1;
  ++counts[best];
  work_[best] += work;
  return static_cast<int64_t>(best);
}

OwnedLayout plan_owned(std::span<const int64_t> numels, std::span<const int64_t> owners, int64_t num_owners,
                       int64_t align_elements) {
  OwnedLayout plan;
  plan.order.resize(numels.size());
  std::iota(plan.order.begin(), plan.order.end(), size_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](size_t a, size_t b) { return owners[a] < owners[b]; });
  plan.layout.num_shards = num_owners;
  std::vector<int64_t> used(static_cast<size_t>(num_owners));
  std::vector<int64_t> places;  // in the owner's shard
  for (const size_t i : plan.order) {
    if (owners[i] < 0 || owners[i] >= num_owners) {
      throw std::invalid_argument("[plan] owner: got " + std::to_string(owners[i]) + ", expected 0 to " +
                                  std::to_string(num_owners - 1) + ".");
    }
    int64_t& end = used[static_cast<size_t>(owners[i])];
    places.push_back(end);
    end += (numels[i] + align_elements - 1) / align_elements * align_elements;
    plan.layout.numels.push_back(numels[i]);
  }
  plan.layout.shard_numel = used.empty() ? 0 : *std::max_element(used.begin(), used.end());
  for (size_t k = 0; k < plan.order.size(); ++k) {
    plan.layout.offsets.push_back(owners[plan.order[k]] * plan.layout.shard_numel + places[k]);
  }
  return plan;
}

}  // namespace fsdp::layout
