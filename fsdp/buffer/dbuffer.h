#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/comm/lane.h"
#include "fsdp/layout/planner.h"
#include "fsdp/strategy/strategy.h"

namespace fsdp {

// Who provides a buffer's memory.
enum class Backing {
  kOwned,  // allocated with the buffer, for as long as it lives
  kSlab,   // empty until reallocate(), gone after release()
};

// A group of tensors packed in one flat buffer and placed on one mesh axis:
//   kShard      this rank holds elements [index * S, (index + 1) * S) of the layout, S = layout.shard_numel
//   kReplicate  it holds all num_shards * S elements (kPartial: likewise, to be summed over the ranks)
// Methods are local unless marked COLLECTIVE. Not thread-safe.
// After: Megatron-FSDP experimental/dbuffer.py; PyTorch FSDP1's FlatParameter.
class DBuffer {
 public:
  DBuffer() = default;
  DBuffer(std::shared_ptr<const layout::FlatLayout> layout, Placement placement, int index,
          const at::TensorOptions& options, Backing backing);
  // Over memory that is there already: `local` is 1-D and of the right size.
  DBuffer(std::shared_ptr<const layout::FlatLayout> layout, Placement placement, int index, at::Tensor local);

  bool defined() const { return local_.defined(); }
  Placement placement() const { return placement_; }
  const layout::FlatLayout& layout() const { return *layout_; }

  // 1-D, S or num_shards * S elements. Its storage object stays the same for ever; released, it has no memory.
  const at::Tensor& local() const { return local_; }
  int64_t bytes() const;
  bool resident() const { return resident_; }
  bool is_at(const c10::StorageImpl* storage) const {
    return local_.defined() && local_.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage;
  }

  // This rank's part of tensor i, 1-D: all of it where replicated, a possibly empty slice where sharded.
  at::Tensor part(size_t i) const;
  // This rank's shard of a replicated buffer, in place: [S].
  at::Tensor own_slice() const;

  // Take and return the memory of a kSlab buffer. Views of local() follow, also those that autograd saved.
  // On a device both are called on the stream that computes, release() once that stream waits for all others that use
  // the buffer; the computing stream may use it after reallocate(), others after ready().
  void reallocate(BufferAllocator& allocator);
  void release(BufferAllocator& allocator, const StreamPoint& end = {});  // `end`: as BufferAllocator::give_back()
  const StreamPoint& ready() const { return ready_; }
  // As release(), but the memory is the caller's to return.
  c10::DataPtr give_up();
  // A buffer over the same memory, whose storage is another object.
  DBuffer alias() const;
  // Exchanges the memory for `memory`, of the same size, and returns what was there. Views follow.
  c10::DataPtr exchange(c10::DataPtr memory);
  // From now on whoever asks for the memory of this buffer or of a view of it gets a c10::Error with this text, until
  // allow_access(). For a buffer whose content would mislead, or that has no memory.
  void refuse_access(const std::string& reason);
  void allow_access();
  bool refuses_access() const { return refuses_access_; }
  // Views of a buffer without memory can be made as if it had some.
  void claim_bytes();

  // COLLECTIVE when it runs. Fills this replicated buffer from every rank's `shard` [S], which may be own_slice().
  comm::Stage all_gather_from(const at::Tensor& shard, std::shared_ptr<comm::Comm> comm, comm::CallLabel label) const;

 private:
  std::shared_ptr<const layout::FlatLayout> layout_;
  Placement placement_ = Placement::kReplicate;
  int index_ = 0;
  at::Tensor local_;
  int64_t numel_ = 0;
  bool resident_ = false;
  StreamPoint ready_;
  bool refuses_access_ = false;
};

// Makes sense of writing into a buffer whose views autograd has saved: the result has a version counter of its own.
at::Tensor writable(const at::Tensor& tensor);

}  // namespace fsdp
