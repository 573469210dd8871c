// What a group does when somebody writes into its gathered weights.
#include <ATen/ATen.h>

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
  note_main_weight_write();
}

void ParameterGroup::write_back_in_forward() {
  const bool was_used = used_revision_ == main_weight_revision();
  write_back();
  if (was_used) used_revision_ = main_weight_revision();
}

at::Tensor ParameterGroup::unsharded_part(size_t i) const {
  return writable(unsharded_.local()).narrow(0, layout_->offsets[i], layout_->numels[i]);
}

}  // namespace fsdp
