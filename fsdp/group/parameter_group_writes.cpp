// What a group does when somebody writes into its gathered weights, or its main weight.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/group/parameter_group.h"

namespace fsdp {

void ParameterGroup::distrust_unsharded() {
  unsharded_revision_ = kNoRevision;
  if (residence_ == Residence::kPersistent) model_revision_ = kNoRevision;
}

void ParameterGroup::isolate_unsharded() {
  if (residence_ != Residence::kShared || shared_memory_) return;
  const auto bytes = static_cast<size_t>(unsharded_.bytes());
  c10::DataPtr own = c10::GetAllocator(unsharded_.local().device().type())->allocate(bytes);
  std::memcpy(own.get(), unsharded_.local().const_data_ptr(), bytes);
  shared_memory_ = unsharded_.exchange(std::move(own));
}

at::Tensor ParameterGroup::rounded_main_weight(size_t i) const {
  const at::Tensor main = main_weight_.part(i);
  if (!fp8_wire_) return main.to(unsharded_.local().scalar_type());
  return fp8_wire_->rounded(main, layout_->offsets[i] + main_slice(i).begin);
}

// In mixed precision only elements that differ from the main weight's rounding were changed; the others keep their
// digits.
void ParameterGroup::write_back() {
  FSDP_ASSERT(current(), "write-back of weights that are not there");
  begin_main_weight_write();
  if (residence_ != Residence::kAliased) {
    for (size_t i = 0; i < num_parameters(); ++i) {
      const layout::Range slice = main_slice(i);
      const at::Tensor main = main_weight_.part(i);
      const at::Tensor written =
          writable(unsharded_.local()).narrow(0, layout_->offsets[i] + slice.begin, slice.size()).to(main.device());
      const at::Tensor changed = rounded_main_weight(i).ne(written);
      main.copy_(at::where(changed, written.to(main.scalar_type()), main));
      write_behind(main);
    }
  }
  note_main_weight_write({});  // the program's operator has moved the parameter's version
}

void ParameterGroup::write_back_in_forward() {
  const bool was_used = used_revision_ == main_weight_revision();
  const bool was_touched = touched_revision_ == main_weight_revision();
  write_back();
  if (was_used) used_revision_ = main_weight_revision();
  if (was_touched) touched_revision_ = main_weight_revision();
}

// ---- the main weight, by optimizers and by the program

void ParameterGroup::note_raw_main_weight_write(std::optional<size_t> parameter) {
  main_weight_.local().unsafeGetTensorImpl()->bump_version();
  if (parameter) {
    was_written_[*parameter] = 1;
  } else {
    std::fill(was_written_.begin(), was_written_.end(), 1);
  }
  refuse_access_unless_current();
}

void ParameterGroup::note_main_weight_write(const at::Tensor& written) noexcept {
  const Backstage backstage;
  const auto or_defer = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception&) {
      if (const auto program = owner()) program->defer(std::current_exception());
    }
  };
  or_defer([&] { finish_unshard(); });  // of a gather that nobody waited for yet: it reads what is written now
  ++observed_writes_;
  or_defer([&] {
    if (written.defined()) mark_written(written);
    refuse_access_unless_current();
    if (shares_main_weight_) await_readers();
  });
}

// Leaves lie one after the other, so a tensor that is not dense is taken for all from its first to its last number. Of
// a parameter this rank may have nothing: such leaves lie in one place, and only they themselves tell.
void ParameterGroup::mark_written(const at::Tensor& written) {
  const int64_t begin = written.storage_offset();
  int64_t end = begin + (written.numel() > 0 ? 1 : 0);
  for (int64_t i = 0; i < written.dim(); ++i) end += std::max<int64_t>(0, written.size(i) - 1) * written.stride(i);
  for (size_t i = 0; i < num_parameters(); ++i) {
    const int64_t place = leaves_[i].storage_offset();
    const bool overlaps = written.numel() > 0 && place < end && begin < place + leaves_[i].numel();
    if (overlaps || written.is_same(leaves_[i])) was_written_[i] = 1;
  }
}

// The views of gathered weights keep their versions when the main weight is written; autograd shall find what it saved
// of them before as old as a plain model's.
void ParameterGroup::note_touch_in_forward() {
  const int64_t revision = main_weight_revision();
  if (touched_revision_ == revision) return;
  const bool may_be_saved = touched_revision_ >= 0;
  touched_revision_ = revision;
  for (size_t i = 0; i < num_parameters(); ++i) {
    if (std::exchange(was_written_[i], uint8_t{0}) == 0 || !may_be_saved) continue;
    if (const auto parameter = parameters_[i].lock()) parameter->bump_version();
  }
}

at::Tensor ParameterGroup::unsharded_part(size_t i) const {
  return writable(unsharded_.local()).narrow(0, layout_->offsets[i], layout_->numels[i]);
}

}  // namespace fsdp
