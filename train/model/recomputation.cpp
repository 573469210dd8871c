#include "train/model/recomputation.h"

#include <map>
#include <string>

#include "fsdp/fsdp.h"

namespace fsdp::train {

Recomputation parse_recomputation(const std::string& what, int64_t every) {
  const std::map<std::string, Recompute> names = {{"none", Recompute::kNone},
                                                  {"elementwise", Recompute::kElementwise},
                                                  {"gate_up", Recompute::kGateUp},
                                                  {"block", Recompute::kBlock}};
  const Recompute preset = names.at(what);
  if (preset == Recompute::kNone && every != 1) {
    throw Error(ErrorCode::kUsage, "[config] train.recompute_every: got " + std::to_string(every) +
                                       " while train.recompute is none, expected 1; set train.recompute to "
                                       "elementwise, gate_up or block.");
  }
  return {preset, every};
}

void set_recomputation(models::Decoder& decoder, const Recomputation& recomputation) {
  const auto is_chosen = [every = recomputation.every](int64_t block) { return block % every == 0; };
  if (recomputation.what == Recompute::kBlock) {
    decoder->set_block_runner([is_chosen](int64_t number, const models::Block& block, const at::Tensor& x_BTE,
                                          const models::AttentionInputs& inputs) {
      // By value: the second run comes after this forward has returned.
      const auto call = [block, inputs](const at::Tensor& x) { return block(x, inputs); };
      return is_chosen(number) ? recompute(call, x_BTE) : call(x_BTE);
    });
  } else if (recomputation.what != Recompute::kNone) {
    const auto not_kept =
        recomputation.what == Recompute::kGateUp ? models::NotKept::kGateUp : models::NotKept::kElementwise;
    int64_t i = 0;
    for (const auto& block : *decoder->layers()) {
      if (is_chosen(i++)) block->as<models::DecoderLayer>()->set_input_runner(not_kept, recompute_input);
    }
  }
}

int64_t kept_bytes_per_token(const models::DecoderConfig& config, Recompute what, int64_t element_size) {
  const int64_t hidden = config.hidden_size;
  if (what == Recompute::kBlock) return hidden * element_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  // Both inputs of norms; what attention reads and writes; what the norms of heads read.
  int64_t elements = 2 * hidden + 2 * queries + 2 * keys;
  if (config.has_qk_norm) elements += queries + keys;
  if (what != Recompute::kGateUp) elements += 2 * config.intermediate_size;
  if (what == Recompute::kNone) elements += 2 * hidden + config.intermediate_size;
  // The logarithm of each head's sum of weights; of each row of a norm.
  int64_t statistics = config.num_attention_heads;
  if (what == Recompute::kNone) statistics += 2;
  if (config.has_qk_norm) statistics += config.num_attention_heads + config.num_key_value_heads;
  return elements * element_size + statistics * static_cast<int64_t>(sizeof(float));
}

}  // namespace fsdp::train
