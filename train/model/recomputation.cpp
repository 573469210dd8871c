#include "train/model/recomputation.h"

#include <map>
#include <memory>
#include <string>

#include "fsdp/fsdp.h"

namespace fsdp::train {

Recomputation parse_recomputation(const std::string& what, int64_t every) {
  const std::map<std::string, Recompute> names = {{"none", Recompute::kNone},
                                                  {"elementwise", Recompute::kElementwise},
                                                  {"gate_up", Recompute::kGateUp},
                                                  {"block", Recompute::kBlock},
                                                  {"offload", Recompute::kBlock}};
  const Recompute preset = names.at(what);
  if (preset == Recompute::kNone && every != 1) {
    throw Error(ErrorCode::kUsage, "[config] train.recompute_every: got " + std::to_string(every) +
                                       " while train.recompute is none, expected 1; set train.recompute to "
                                       "elementwise, gate_up, block or offload.");
  }
  return {preset, every, what == "offload" ? BlockInputs::kOnHost : BlockInputs::kKept};
}

void set_recomputation(models::Decoder& decoder, const Recomputation& recomputation) {
  const auto is_chosen = [every = recomputation.every](int64_t block) { return block % every == 0; };
  if (recomputation.what == Recompute::kBlock) {
    const auto rest = recomputation.inputs == BlockInputs::kOnHost ? std::make_shared<HostInputs>() : nullptr;
    decoder->set_block_runner([is_chosen, rest](int64_t number, const models::Block& block, const at::Tensor& x_BTE,
                                                const models::AttentionInputs& inputs) {
      // By value: the second run comes after this forward has returned.
      const auto call = [block, inputs](const at::Tensor& x) { return block(x, inputs); };
      return is_chosen(number) ? recompute(call, x_BTE, rest) : call(x_BTE);
    });
  } else if (recomputation.what != Recompute::kNone) {
    const auto not_kept =
        recomputation.what == Recompute::kGateUp ? models::NotKept::kGateUp : models::NotKept::kElementwise;
    int64_t i = 0;
    for (const auto& block : *decoder->layers()) {
      auto* own = block->as<models::DecoderLayer>();
      if (is_chosen(i++) && own != nullptr) own->set_input_runner(not_kept, recompute_input);
    }
  }
}

}  // namespace fsdp::train
