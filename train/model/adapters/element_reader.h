#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/hub/model_folder.h"
#include "models/config/stored_parts.h"

namespace fsdp::train {

// Elements of a parameter, in order, from the tensors that files keep it in.
class ElementReader {
 public:
  ElementReader(const io::ModelFolder& folder, std::vector<models::NamedShape> parts)
      : folder_(folder), parts_(std::move(parts)) {}

  // Elements [first, first + count) as fp32. Throws io::Error(kModel), naming the tensor, for a number that is not
  // finite.
  void read(int64_t first, int64_t count, float* out);

 private:
  void read_part(const std::string& name, int64_t first, int64_t count, float* out);

  const io::ModelFolder& folder_;
  std::vector<models::NamedShape> parts_;
  std::vector<char> stored_;
};

}  // namespace fsdp::train
