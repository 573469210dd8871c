// What a process knows of tensors, whatever owns them.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace fsdp::kernels {

// A value for some tensors, by the tensor object and not by its memory, for as long as it lives; keeps none alive.
// Thread-safe; a table without entries is asked without a lock.
template <class Value>
class TensorTable {
 public:
  // Replaces one that is there.
  void set(const at::Tensor& tensor, Value value) {
    const std::unique_lock lock(mutex_);
    forget_dead();
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(value)});
    has_any_ = true;
  }

  // Keeps one that is there. The value of `tensor` from now on.
  Value add(const at::Tensor& tensor, Value value) {
    const std::unique_lock lock(mutex_);
    forget_dead();
    Entry entry{Weak(tensor.getIntrusivePtr()), std::move(value)};
    has_any_ = true;
    return entries_.try_emplace(tensor.unsafeGetTensorImpl(), std::move(entry)).first->second.value;
  }

  void erase(const at::Tensor& tensor) {
    const std::unique_lock lock(mutex_);
    forget_dead();
    entries_.erase(tensor.unsafeGetTensorImpl());
    has_any_ = !entries_.empty();
  }

  std::optional<Value> find(const at::Tensor& tensor) const {
    if (!has_any_) return std::nullopt;
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    if (found == entries_.end() || found->second.tensor.expired()) return std::nullopt;
    return found->second.value;
  }

  bool has_any() const { return has_any_; }

 private:
  // Keeps the tensor's address from being another's, not the tensor.
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;
    Value value;
  };

  void forget_dead() {
    std::erase_if(entries_, [](const auto& item) { return item.second.tensor.expired(); });
  }

  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  std::atomic<bool> has_any_{false};
};

}  // namespace fsdp::kernels
