#include "io/weights/adapter_folder.h"

#include <string>
#include <vector>

#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/staged_folder.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::io {
namespace {

struct Part {
  TensorDeclaration tensor;
  const std::vector<float>* values;
};

std::vector<Part> parts_of(const Adapter& adapter) {
  std::vector<Part> parts;
  for (const auto& [module, factors] : adapter.modules) {
    const std::string name = std::string(kAdapterPrefix) + module;
    if (factors.magnitude == Magnitude::kOffsets) {
      throw Error(ErrorKind::kUsage, "[export] --adapter: got a checkpoint of DoRA, whose magnitudes are told from " +
                                         in_quotes(module) +
                                         " of its base, expected whole ones. Export the run's folder `model`, or merge "
                                         "it with --merge.");
    }
    parts.push_back({{name + ".lora_A.weight", DType::F32, {factors.rank, factors.in}}, &factors.a});
    parts.push_back({{name + ".lora_B.weight", DType::F32, {factors.out, factors.rank}}, &factors.b});
    if (factors.magnitude == Magnitude::kNorms)
      parts.push_back({{name + ".lora_magnitude_vector", DType::F32, {factors.out}}, &factors.norms});
  }
  return parts;
}

}  // namespace

void write_adapter_folder(const Adapter& adapter, const OutputFolder& output) {
  const std::vector<Part> parts = parts_of(adapter);
  std::vector<TensorDeclaration> tensors;
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    tensors.push_back(part.tensor);
    bytes += part.values->size() * sizeof(float);
  }
  StagedFolder staging(output.path, output.overwrite, bytes);
  SafetensorsWriter writer(staging.path() / kAdapterWeightsFile, tensors, {{"format", "pt"}});
  for (const Part& part : parts)
    writer.write(part.tensor.name, 0, static_cast<int64_t>(part.values->size()), part.values->data());
  writer.commit();
  write_file_atomically(staging.path() / kAdapterConfigFile, to_peft(adapter.config).dump(2) + "\n");
  staging.publish();
}

}  // namespace fsdp::io
