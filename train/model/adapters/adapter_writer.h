#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "train/model/adapters/adapter_start.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// adapter_model.safetensors of peft, fp32, from the parameters of training. Where those are lengths of rows beyond the
// base's, the file has the lengths. Where adapters began with a part of their base, it has what they added since, for
// the base as it was before: B A - B0 A0 is one product of twice the rank.
class AdapterWriter {
 public:
  // `norms`: of the base's rows, by map; `start` may be null. Both must outlive it.
  AdapterWriter(const std::filesystem::path& file, const std::vector<WholeTensor>& adapters,
                const std::map<std::string, at::Tensor>& norms, const AdapterStart* start);

  // Elements [first, first + values.numel()) of the flattened parameter; in order.
  void write(const std::string& parameter, int64_t first, const at::Tensor& values);
  void commit() { writer_.commit(); }

 private:
  void write_changed(const std::string& parameter, const io::LowRank& began);

  const std::map<std::string, at::Tensor>& norms_;
  const AdapterStart* start_;
  std::map<std::string, std::vector<float>> collected_;  // of factors that began otherwise, until they are whole
  io::SafetensorsWriter writer_;
};

// "X" of "X.lora_magnitude_offset".
bool is_offset(const std::string& parameter);
std::string map_of_offset(const std::string& parameter);

}  // namespace fsdp::train
