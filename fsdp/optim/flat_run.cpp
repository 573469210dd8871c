#include "fsdp/optim/flat_run.h"

#include <optional>

#include "fsdp/buffer/disk_memory.h"

namespace fsdp {
namespace {

void read_ahead_of(const FlatRun& run) {
  read_ahead(run.weight);
  read_ahead(run.gradient);
  for (const at::Tensor& state : run.states) read_ahead(state);
}

// What was only read goes back without a write.
void write_behind_of(const FlatRun& run) {
  write_behind(run.weight);
  write_behind(run.gradient);
  write_behind(run.copy);
  for (const at::Tensor& state : run.states) write_behind(state);
}

}  // namespace

void pass_over_disk(const FlatRun& run, const std::function<void(const FlatRun&)>& update) {
  if (run.of == RunOf::kTensor) {  // is one piece
    read_ahead_of(run);
    update(run);
    write_behind_of(run);
    return;
  }
  std::optional<FlatRun> last;
  const auto finish_last = [&] {
    if (!last) return;
    update(*last);
    write_behind_of(*last);
  };
  for_each_piece(run, kDiskPiece, [&](const FlatRun& piece) {
    read_ahead_of(piece);
    finish_last();
    last = piece;
  });
  finish_last();
}

}  // namespace fsdp
