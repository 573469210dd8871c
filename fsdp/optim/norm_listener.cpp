#include "fsdp/optim/norm_listener.h"

#include <algorithm>

namespace fsdp {
namespace {

std::vector<std::weak_ptr<NormListener>>& norm_listeners() {
  thread_local std::vector<std::weak_ptr<NormListener>> listeners;
  return listeners;
}

}  // namespace

void add_norm_listener(const std::weak_ptr<NormListener>& listener) {
  auto& all = norm_listeners();
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& each) { return each.expired(); }), all.end());
  const bool known =
      std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.lock() == listener.lock(); });
  if (!known) all.push_back(listener);
}

void tell_norm_listeners(const std::vector<at::Tensor>& leaves, const at::Tensor& norm, double norm_type) {
  for (const auto& each : norm_listeners()) {
    if (const auto listener = each.lock()) listener->hear(leaves, norm, norm_type);
  }
}

}  // namespace fsdp
