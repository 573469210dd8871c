#pragma once

#include <ATen/core/Tensor.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp/base/error.h"
#include "io/base/input_file.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}  // namespace caffe2::serialize

namespace fsdp {

// An archive of torch::save() or torch::jit, to be loaded by LibTorch, whose larger tensors stay in the file: LibTorch
// gets memory for them that nobody touches, so that it costs nothing, and each rank then reads what it needs. Reads are
// checked like those of io::InputFile.
class LazyArchive : public caffe2::serialize::ReadAdapterInterface {
 public:
  // Throws Error(kCheckpoint) for a file that is no archive, or has code that runs while LibTorch loads it;
  // io::Error(kModel) for one that is missing.
  explicit LazyArchive(const std::string& path);

  std::string path() const { return file_.path().native(); }
  Error no_archive(const std::exception& reason) const;
  size_t size() const override { return file_.size(); }
  size_t read(uint64_t position, void* out, size_t num_bytes, const char* what = "") const override;

  // Reads now, to where LibTorch expects it, what is left of these tensors.
  void read(const at::Tensor& tensor);
  // Of all but these.
  void read_all_but(const std::vector<at::Tensor>& tensors);
  // Elements [begin, end) of a tensor of this archive, 1-D, in its dtype. Throws Error(kCheckpoint) if the file has
  // less.
  at::Tensor slice(const at::Tensor& tensor, int64_t begin, int64_t end) const;

 private:
  struct Range {
    uint64_t position;
    size_t num_bytes;
  };
  void refuse_code_that_would_run(caffe2::serialize::PyTorchStreamReader& reader) const;
  void find_tensors(caffe2::serialize::PyTorchStreamReader& reader);

  io::InputFile file_;
  std::map<uint64_t, size_t> large_;  // from position to size
  // What LibTorch believes to have read, by where it is.
  mutable std::unordered_map<void*, Range> unread_;
};

}  // namespace fsdp
