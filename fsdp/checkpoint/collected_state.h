#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/sections.h"
#include "fsdp/checkpoint/slice_table.h"

namespace fsdp::checkpoint {

// What a checkpoint's dtype is called; Error(kUsage) naming the tensor for one that the format does not have.
io::DType stored_dtype(at::ScalarType dtype, const std::string& tensor);
at::ScalarType torch_dtype(io::DType dtype);

// Everything that a State holds, as this rank has it.
struct CollectedState {
  std::vector<TensorSlice> slices;    // names with their section: "model/layers.0.weight"
  std::vector<TensorSlice> replicas;  // whole tensors
  std::map<std::string, std::map<std::string, std::string>> values;  // by section

  // COLLECTIVE. Replicas become slices: under their name where all ranks that have one have the same bytes, else as
  // `<name>#<rank>`.
  void resolve_replicas(const World& world);
  std::vector<SliceRow> rows() const;
};

CollectedState collect(const Sections& sections);

}  // namespace fsdp::checkpoint
