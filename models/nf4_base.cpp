#include "models/nf4_base.h"

#include "io/weights/nf4_names.h"
#include "models/lora.h"

namespace fsdp::models {

void keep_blocks_as_nf4(const Decoder& decoder) {
  for (const NamedLinear& linear : linears_in_blocks(decoder)) {
    if (!linear.module->is_nf4()) linear.module->keep_as_nf4();
  }
}

std::map<std::string, CodedWeight> coded_weights(const Decoder& decoder) {
  std::map<std::string, CodedWeight> weights;
  for (const auto& [name, module] : linears_in_blocks(decoder)) {
    if (!module->is_nf4()) continue;
    weights[name + std::string(io::kNf4Suffix)] = {name + ".weight", module->out_features(), module->in_features()};
  }
  return weights;
}

}  // namespace fsdp::models
