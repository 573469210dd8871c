#include "models/nf4_base.h"

#include "io/weights/nf4_names.h"
#include "models/lora.h"

namespace fsdp::models {
namespace {

void keep_once(LinearImpl& linear) {
  if (!linear.is_nf4()) linear.keep_as_nf4();
}

}  // namespace

void keep_blocks_as_nf4(const Decoder& decoder) {
  for (const NamedLinear& linear : linears_in_blocks(decoder)) keep_once(*linear.module);
}

void keep_all_as_nf4(const Decoder& decoder) {
  keep_blocks_as_nf4(decoder);
  for (Linear outer : {decoder->embed_tokens(), decoder->head()}) {
    if (!outer.is_empty()) keep_once(*outer);
  }
}

std::map<std::string, CodedWeight> coded_weights(const Decoder& decoder) {
  std::map<std::string, CodedWeight> weights;
  for (const auto& item : decoder->named_modules()) {
    const auto* linear = item.value()->as<LinearImpl>();
    if (linear == nullptr || !linear->is_nf4()) continue;
    weights[item.key() + std::string(io::kNf4Suffix)] = {item.key() + ".weight", linear->out_features(),
                                                         linear->in_features()};
  }
  return weights;
}

}  // namespace fsdp::models
