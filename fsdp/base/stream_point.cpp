#include "fsdp/base/stream_point.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace fsdp {

struct StreamPoint::Mark {
  explicit Mark(const c10::Stream& where) : stream(where), event(where.device_type()) { event.record(stream); }
  c10::Stream stream;
  c10::Event event;
};

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

StreamPoint StreamPoint::now(c10::Device device) {
  return device.is_cpu() ? StreamPoint() : end_of(current_stream(device));
}

StreamPoint StreamPoint::end_of(const c10::Stream& stream) {
  StreamPoint point;
  point.mark_ = std::make_shared<const Mark>(stream);
  return point;
}

void StreamPoint::hold_back(const c10::Stream& stream) const {
  if (mark_ && mark_->stream != stream) mark_->event.block(stream);  // a stream keeps its own order anyway
}

void StreamPoint::hold_back_current() const {
  if (mark_) hold_back(current_stream(mark_->stream.device()));
}

}  // namespace fsdp
