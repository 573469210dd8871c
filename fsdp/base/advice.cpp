#include "fsdp/base/advice.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

namespace fsdp {
namespace {

struct Channel {
  std::mutex mutex;
  AdviceHandler handler = [](const Advice& advice) { TORCH_WARN("fsdp: ", advice.text); };
};

Channel& channel() {
  static Channel instance;
  return instance;
}

}  // namespace

void set_advice_handler(AdviceHandler handler) {
  const std::lock_guard lock(channel().mutex);
  channel().handler = std::move(handler);
}

void give_advice(const Advice& advice) {
  AdviceHandler handler;
  {
    const std::lock_guard lock(channel().mutex);
    handler = channel().handler;
  }
  if (handler) handler(advice);
}

}  // namespace fsdp
