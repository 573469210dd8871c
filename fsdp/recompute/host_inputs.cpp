#include "fsdp/recompute/host_inputs.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/base/stream_point.h"

namespace fsdp {

namespace {

constexpr int64_t kLeastBytes = int64_t{1} << 10;

}  // namespace

class HostInputs::Item {
 public:
  at::Tensor host;
  at::Tensor on_device;  // leaving, or there again; else undefined
  c10::Device device = c10::kCPU;
  StreamPoint copied;  // of the copy that was begun last
  std::weak_ptr<Item> before;
};

bool HostInputs::moves(const at::Tensor& input) {
  return input.defined() && !input.is_cpu() && static_cast<int64_t>(input.nbytes()) >= kLeastBytes;
}

const c10::Stream& HostInputs::stream_of(c10::Device device) {
  if (!stream_) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
  FSDP_CHECK(stream_->device() == device, "[HostInputs] got an input on ", device, ", expected one on ",
             stream_->device(), " as before. Make one for each device.");
  return *stream_;
}

// Its memory may be taken by what the current stream is given from now on.
void HostInputs::let_go() {
  if (!leaving_) return;
  leaving_->copied.hold_back_current();
  leaving_->on_device = at::Tensor();
  leaving_.reset();
}

std::shared_ptr<HostInputs::Item> HostInputs::put(const at::Tensor& input) {
  const Backstage backstage;
  let_go();
  const c10::Stream& stream = stream_of(input.device());
  auto item = std::make_shared<Item>();
  item->device = input.device();
  item->on_device = input.detach();
  item->host = at::empty(input.sizes(), input.options().device(at::kCPU).pinned_memory(input.is_cuda()));
  StreamPoint::now(input.device()).hold_back(stream);
  {
    const c10::StreamGuard guard(stream);
    item->host.copy_(item->on_device, /*non_blocking=*/true);
  }
  item->copied = StreamPoint::end_of(stream);
  item->before = std::exchange(last_, item);
  leaving_ = item;
  return item;
}

void HostInputs::begin_to_bring(Item& item) {
  if (item.on_device.defined()) return;
  const c10::Stream& stream = stream_of(item.device);
  item.on_device = at::empty(item.host.sizes(), item.host.options().device(item.device).pinned_memory(false));
  StreamPoint::now(item.device).hold_back(stream);  // what had this memory before
  const c10::StreamGuard guard(stream);
  item.on_device.copy_(item.host, /*non_blocking=*/true);
  item.copied = StreamPoint::end_of(stream);
}

at::Tensor HostInputs::take(const std::shared_ptr<Item>& item) {
  const Backstage backstage;
  begin_to_bring(*item);
  item->copied.hold_back_current();
  if (leaving_ == item) leaving_.reset();
  at::Tensor input = std::exchange(item->on_device, at::Tensor());
  if (const auto before = item->before.lock()) begin_to_bring(*before);
  return input;
}

}  // namespace fsdp
