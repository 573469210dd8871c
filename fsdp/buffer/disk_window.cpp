#include "fsdp/buffer/disk_window.h"

#include <ATen/ATen.h>

#include <utility>

namespace fsdp {

DiskRead::DiskRead(const DiskSpot& place, void* to)
    : disk_(place.disk), transfer_(disk_->queue()->read(static_cast<std::byte*>(to), place.bytes, place.offset)) {}

DiskRead::~DiskRead() {
  if (transfer_) disk_->queue()->wait(*transfer_);
}

void DiskRead::wait() {
  if (!transfer_) return;
  const auto transfer = std::exchange(transfer_, nullptr);
  if (const int error = disk_->queue()->wait(*transfer)) disk_->fail_read(error);
}

DiskWindow::DiskWindow(const at::Tensor& place, Content content) : place_(place), memory_(place) {
  auto spot = find_on_disk(place);
  if (!spot || spot->disk->queue() == nullptr) {
    // Of a part, forget_content() would take whole pages.
    const bool is_whole = place.nbytes() == place.storage().nbytes();
    if (content == Content::kKept) read_ahead(place);
    if (content == Content::kNew && is_whole) forget_content(place);
    return;
  }
  spot_ = std::move(*spot);
  // As far into a block as in the file, so that whole blocks lie on whole blocks.
  const int64_t into = spot_.offset % kDiskBlock;
  buffer_ = spot_.disk->buffers().take(into + spot_.bytes);
  begin_ = buffer_.get() + into;
  memory_ = at::from_blob(
      begin_, place.sizes(), [keep = buffer_](void*) {}, place.options().requires_grad(false));
  if (content == Content::kKept) read_ = std::make_shared<DiskRead>(spot_, begin_);
}

DiskWindow& DiskWindow::operator=(DiskWindow&& other) noexcept {
  if (this == &other) return *this;
  release();
  place_ = std::exchange(other.place_, at::Tensor());
  memory_ = std::exchange(other.memory_, at::Tensor());
  spot_ = std::exchange(other.spot_, DiskSpot());
  buffer_ = std::exchange(other.buffer_, nullptr);
  begin_ = other.begin_;
  read_ = std::exchange(other.read_, nullptr);
  return *this;
}

void DiskWindow::wait() {
  if (const auto read = std::exchange(read_, nullptr)) read->wait();
}

void DiskWindow::write() {
  wait();
  if (!spot_.disk) return close();
  const DiskSpot spot = spot_;
  const std::shared_ptr<const std::byte> content(buffer_, begin_);
  release();
  spot.disk->queue()->write(content, spot.bytes, spot.offset, kMostBehind);
  spot.disk->check_writes();
}

void DiskWindow::close() {
  const at::Tensor mapped = spot_.disk ? at::Tensor() : place_;
  release();
  write_behind(mapped);
}

void DiskWindow::release() noexcept {
  read_.reset();
  place_.reset();
  memory_.reset();
  buffer_.reset();
  spot_ = {};
}

}  // namespace fsdp
