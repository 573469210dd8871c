#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/atomic_file.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::io {

// Writes a checkpoint that torch.distributed.checkpoint.load reads: `.metadata` and one file `__0_0.distcp` with an
// archive of torch.save per tensor. Both hold small pickles, because that is what DCP reads (pickle_writer.h). Tensors
// are known first and arrive in pieces. Without commit() nothing appears under its name. Not thread-safe.
class DcpWriter {
 public:
  // DCP's names are `prefix` + name; with a prefix such as "model.", a state dict {"model": {name: ...}} loads it.
  // `folder` must exist. Throws Error(kUsage) for a name twice or a shape that cannot be stored.
  DcpWriter(const std::filesystem::path& folder, const std::vector<TensorDeclaration>& tensors,
            std::string prefix = {});

  // Writes elements [first_element, first_element + num_elements) of the flattened tensor. The pieces of one tensor
  // come in order; those of different ones may alternate. Throws Error(kUsage) for an unknown name or another order.
  void write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data);

  // Checks that every element was written (else Error(kUsage) naming the tensor), then makes the checkpoint durable and
  // visible, `.metadata` last.
  void commit();

 private:
  // One tensor's archive: head, elements, tail.
  struct Archive {
    TensorDeclaration tensor;
    int64_t numel = 0;
    uint64_t begin = 0;       // byte of the file
    uint64_t data_begin = 0;  // from `begin`
    uint64_t bytes = 0;
    int64_t num_written = 0;  // elements
    uint32_t crc32 = 0;       // of those
  };
  Error usage_error(std::string_view op, std::string_view tensor, const std::string& detail) const;
  void finish(const Archive& archive);
  std::string metadata() const;

  std::filesystem::path folder_;
  std::string prefix_;
  AtomicFile file_;
  std::vector<Archive> archives_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace fsdp::io
