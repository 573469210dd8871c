#include "fsdp/deferred/deferred_init.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <map>

#include "fsdp/base/check.h"
#include "fsdp/deferred/tape.h"

namespace fsdp {

using construction::DeferredTensor;
using construction::scope_tape;
using construction::Storages;
using construction::Tape;

namespace {

// Of the scopes of this thread, in order.
std::vector<std::weak_ptr<Tape>>& tapes_of_thread() {
  thread_local std::vector<std::weak_ptr<Tape>> tapes;
  return tapes;
}

}  // namespace

struct DeferredInit::Mode {
  Mode() {
    scope_tape() = std::make_shared<Tape>();
    std::erase_if(tapes_of_thread(), [](const std::weak_ptr<Tape>& tape) { return tape.expired(); });
    tapes_of_thread().push_back(scope_tape());
  }
  ~Mode() { scope_tape().reset(); }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

  c10::impl::IncludeDispatchKeyGuard capture{c10::DispatchKey::DeferredInit};
};

DeferredInit::DeferredInit() {
  FSDP_CHECK(!scope_tape(), "[deferred] a DeferredInit scope inside another one, expected one at a time on a thread. ",
             "Construct the whole model in the outer scope.");
  mode_ = std::make_unique<Mode>();
}

DeferredInit::~DeferredInit() = default;

bool is_deferred(const at::Tensor& tensor) { return DeferredTensor::of(tensor) != nullptr; }

void materialize(const std::vector<at::Tensor>& tensors) {
  struct Wanted {
    std::shared_ptr<Tape> tape;
    Storages storages;
  };
  std::map<int64_t, Wanted> by_number;
  for (const at::Tensor& tensor : tensors) {
    const DeferredTensor* deferred = DeferredTensor::of(tensor);
    if (deferred == nullptr) continue;
    Wanted& wanted = by_number[deferred->tape()->number()];
    wanted.tape = deferred->tape();
    wanted.storages.insert(deferred->storage_address());
  }
  for (const auto& [number, wanted] : by_number) wanted.tape->materialize(wanted.storages);
}

void materialize_all() {
  for (const std::weak_ptr<Tape>& alive : tapes_of_thread()) {
    if (const std::shared_ptr<Tape> tape = alive.lock()) tape->materialize_all();
  }
}

}  // namespace fsdp
