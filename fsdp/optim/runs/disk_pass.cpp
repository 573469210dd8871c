#include "fsdp/optim/runs/disk_pass.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

int64_t bytes_of(const FlatRun& run) {
  auto bytes = static_cast<int64_t>(run.weight.nbytes() + run.gradient.nbytes());
  if (run.copy.defined()) bytes += static_cast<int64_t>(run.copy.nbytes());
  for (const at::Tensor& state : run.states) bytes += static_cast<int64_t>(state.nbytes());
  return bytes;
}

}  // namespace

void DiskPass::add(const FlatRun& run) {
  if (const auto spot = find_on_disk(run.weight)) disks_.insert(spot->disk);
  if (run.of == RunOf::kTensor) return open(run);
  for_each_piece(run, kDiskPiece, [this](const FlatRun& piece) { open(piece); });
}

void DiskPass::open(const FlatRun& run) {
  using Content = DiskWindow::Content;
  Piece piece{run, bytes_of(run), {}};
  while (!pieces_.empty() && open_bytes_ + piece.bytes > kMostOpen) update_oldest();
  piece.windows.emplace_back(run.weight, Content::kKept);
  piece.windows.emplace_back(run.gradient, Content::kKept);
  if (run.copy.defined()) piece.windows.emplace_back(run.copy, Content::kNew);
  for (const at::Tensor& state : run.states) piece.windows.emplace_back(state, Content::kKept);
  open_bytes_ += piece.bytes;
  pieces_.push_back(std::move(piece));
}

void DiskPass::update_oldest() {
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  open_bytes_ -= piece.bytes;
  auto window = piece.windows.begin();
  const auto place_in = [&](at::Tensor& tensor) { tensor = (window++)->tensor(); };
  place_in(piece.run.weight);
  place_in(piece.run.gradient);
  if (piece.run.copy.defined()) place_in(piece.run.copy);
  for (at::Tensor& state : piece.run.states) place_in(state);
  update_(piece.run);
  piece.run = {};
  for (size_t i = 0; i < piece.windows.size(); ++i) i == 1 ? piece.windows[i].close() : piece.windows[i].write();
}

void DiskPass::update_all() {
  while (!pieces_.empty()) update_oldest();
}

void DiskPass::finish() {
  update_all();
  for (const auto& disk : disks_) disk->finish_windows();
  disks_.clear();
}

DiskSlices::DiskSlices(const std::vector<at::Tensor>& places, Use use) : use_(use) {
  for (const at::Tensor& place : places) {
    const at::Tensor flat = place.view({-1});
    for (int64_t begin = 0; begin < flat.numel() || begin == 0; begin += kDiskPiece) {
      const int64_t numel = std::min(kDiskPiece, flat.numel() - begin);
      closed_.push_back({flat.narrow(0, begin, numel), begin + numel == flat.numel()});
    }
  }
}

void DiskSlices::open_ahead() {
  while (!closed_.empty()) {
    const auto bytes = static_cast<int64_t>(closed_.front().place.nbytes());
    if (!open_.empty() && open_bytes_ + bytes > kMostOpen) return;
    open_.push_back(std::move(closed_.front()));
    closed_.pop_front();
    open_.back().window = DiskWindow(open_.back().place, DiskWindow::Content::kKept);
    open_bytes_ += bytes;
  }
}

void DiskSlices::pass(const std::function<void(const at::Tensor&)>& visit) {
  for (bool is_last = false; !is_last;) {
    open_ahead();
    Slice slice = std::move(open_.front());
    open_.pop_front();
    open_bytes_ -= static_cast<int64_t>(slice.place.nbytes());
    visit(slice.window.tensor());
    use_ == Use::kRead ? slice.window.close() : slice.window.write();
    is_last = slice.is_last;
  }
}

void finish_windows(const std::vector<at::Tensor>& tensors) {
  std::set<std::shared_ptr<DiskMemory>> disks;
  for (const at::Tensor& tensor : tensors) {
    if (const auto spot = find_on_disk(tensor)) disks.insert(spot->disk);
  }
  for (const auto& disk : disks) disk->finish_windows();
}

}  // namespace fsdp
