#include "fsdp/checkpoint/archive/lazy_archive.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/archive/zip_header.h"
#include "fsdp/checkpoint/outcome.h"

namespace fsdp {
namespace {

// Smaller tensors are read at once: a page costs as much as a part of it.
constexpr size_t kMinLazyBytes = 4096;
// Of TorchScript; large models have some hundred kilobytes.
constexpr size_t kMostCodeBytes = size_t{64} << 20;

void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()->mutable_data() : nullptr;
}

}  // namespace

LazyArchive::LazyArchive(const std::string& path) : file_(path, io::ErrorKind::kModel) {
  try {
    // Does not own; reads all, because nothing is known to be large yet.
    const std::shared_ptr<caffe2::serialize::ReadAdapterInterface> adapter(this, [](auto*) {});
    caffe2::serialize::PyTorchStreamReader reader(adapter);
    refuse_code_that_would_run(reader);
    find_tensors(reader);
  } catch (const io::Error&) {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw no_archive(error);
  }
}

Error LazyArchive::no_archive(const std::exception& reason) const {
  return {ErrorCode::kCheckpoint,
          c10::str("[load] ", io::in_quotes(path()), ": got \"", one_line(reason),
                   "\", expected an archive of torch::save(), torch.jit.save() or fsdp::save(). It is another kind of "
                   "file, or incomplete.")};
}

// The one thing of an archive's TorchScript that LibTorch runs while it loads. The records are those that LibTorch's
// own reader finds, whose names know no case.
void LazyArchive::refuse_code_that_would_run(caffe2::serialize::PyTorchStreamReader& reader) const {
  size_t total = 0;
  for (const std::string& name : reader.getAllRecords()) {
    constexpr std::string_view kFolder = "code/";
    const bool is_code = name.size() >= kFolder.size() &&
                         std::equal(kFolder.begin(), kFolder.end(), name.begin(),
                                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
    if (!is_code) continue;
    total += reader.getRecordSize(name);
    if (total > kMostCodeBytes) {
      FSDP_THROW(kCheckpoint, "[load] ", io::in_quotes(path()), ": got more than ", kMostCodeBytes,
                 " bytes of code, expected a model's. It is no archive of a model.");
    }
    const auto [data, num_bytes] = reader.getRecord(name);
    const std::string_view code(static_cast<const char*>(data.get()), num_bytes);
    if (code.find("__setstate__") == std::string_view::npos) continue;
    FSDP_THROW(kCheckpoint, "[load] ", io::in_quotes(path()), ": got a __setstate__ in ", io::in_quotes(name),
               ", code that would run while the file is read; expected tensors alone. If you trust the file, load it "
               "with torch::jit::load() before fully_shard().");
  }
}

void LazyArchive::find_tensors(caffe2::serialize::PyTorchStreamReader& reader) {
  for (const std::string& name : reader.getAllRecords()) {
    const size_t num_bytes = reader.getRecordSize(name);
    if (!name.starts_with("data/") || num_bytes < kMinLazyBytes) continue;
    ZipHeader header;
    file_.read_at(reader.getRecordHeaderOffset(name), header.bytes, sizeof(header.bytes));
    if (!header.compressed()) large_.emplace(reader.getRecordOffset(name), num_bytes);
  }
}

size_t LazyArchive::read(uint64_t position, void* out, size_t num_bytes, const char* /*what*/) const {
  // LibTorch goes astray in a file whose end is missing.
  if (position > size() || num_bytes > size() - position) {
    FSDP_THROW(kCheckpoint, "[load] ", io::in_quotes(path()), ": got the end of the file at byte ", size(),
               ", expected ", num_bytes, " bytes outside of it. It is no archive, or incomplete.");
  }
  const auto found = large_.find(position);
  if (found != large_.end() && found->second == num_bytes) {
    unread_[out] = {position, num_bytes};
  } else {
    unread_.erase(out);
    file_.read_at(position, out, num_bytes);
  }
  return num_bytes;
}

void LazyArchive::read(const at::Tensor& tensor) {
  const auto found = unread_.find(memory_of(tensor));
  if (found == unread_.end()) return;
  file_.read_at(found->second.position, found->first, found->second.num_bytes);
  unread_.erase(found);
}

void LazyArchive::read_all_but(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> kept;
  for (const at::Tensor& tensor : tensors) kept.insert(memory_of(tensor));
  for (auto item = unread_.begin(); item != unread_.end();) {
    if (kept.count(item->first) > 0) {
      ++item;
      continue;
    }
    file_.read_at(item->second.position, item->first, item->second.num_bytes);
    item = unread_.erase(item);
  }
}

at::Tensor LazyArchive::slice(const at::Tensor& tensor, int64_t begin, int64_t end) const {
  const auto found = unread_.find(memory_of(tensor));
  if (found == unread_.end()) return tensor.reshape({-1}).narrow(0, begin, end - begin);
  FSDP_ASSERT(tensor.is_contiguous(), "a tensor in the file that is not contiguous");
  const auto element = static_cast<uint64_t>(tensor.element_size());
  const uint64_t offset = static_cast<uint64_t>(tensor.storage_offset() + begin) * element;
  const uint64_t num_bytes = static_cast<uint64_t>(end - begin) * element;
  if (offset + num_bytes > found->second.num_bytes) {
    FSDP_THROW(kCheckpoint, "[load] ", io::in_quotes(path()), ": got a record of ", found->second.num_bytes,
               " bytes, expected at least ", offset + num_bytes, ". The file is damaged.");
  }
  const at::Tensor part = at::empty({end - begin}, at::TensorOptions().dtype(tensor.scalar_type()));
  if (begin < end) file_.read_at(found->second.position + offset, part.mutable_data_ptr(), num_bytes);
  return part;
}

}  // namespace fsdp
