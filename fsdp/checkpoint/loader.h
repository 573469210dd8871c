#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/sections.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::checkpoint {

// One checkpoint on its way into a State.
class Loader {
 public:
  // Local. Reads and checks the manifest. Throws io::Error(kModel).
  Loader(const World& world, std::filesystem::path folder);

  const io::CheckpointManifest& manifest() const { return manifest_; }
  // Local. Lets every section say what it wants.
  void request(const Sections& sections);
  // Local. What the checkpoint has in these sections and this rank has not asked for.
  std::set<std::string> not_asked_for(const Sections& sections) const;
  // Local. Throws Error(kCheckpoint) with all differences between what is wanted and what the checkpoint has; nothing
  // has been written then. `surplus`: what nobody has asked for, a sign that it is of another model.
  void check_fit(const std::set<std::string>& surplus);
  // COLLECTIVE in so far as every rank must come. Writes the tensors. Throws io::Error for damaged files.
  void read(const Sections& sections);
  // Local.
  void finish(const Sections& sections);
  int64_t bytes() const { return bytes_; }

 private:
  friend class SectionSource;
  struct Request {
    TensorSlice slice;   // name with its section
    at::Tensor staging;  // where the bytes go if the slice is of another dtype or no host memory
  };
  void request_slice(TensorSlice slice);
  bool request_replica(const std::string& name, const at::Tensor& tensor);
  void note(const std::string& difference);
  std::vector<int64_t> holders_of(const std::string& name) const;
  void read_in_batches(const std::vector<io::ReadRange>& ranges) const;
  void add_ranges(Request& request, std::vector<io::ReadRange>& ranges) const;

  const World& world_;
  std::filesystem::path folder_;
  io::CheckpointManifest manifest_;
  std::vector<Request> requests_;
  std::set<std::string> asked_;
  std::vector<std::string> differences_;
  int64_t bytes_ = 0;
};

}  // namespace fsdp::checkpoint
