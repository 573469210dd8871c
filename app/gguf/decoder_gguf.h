// A decoder as llama.cpp names it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/gguf/gguf_writer.h"
#include "models/config/decoder_config.h"

namespace fsdp::app {

// The architecture, sizes and rotary base of a model, for a file whose matrices are stored as `type`. Throws
// Error(kUsage) naming what llama.cpp computes otherwise: layers without rotary embedding that are not every fourth of
// smollm3, sliding windows, biases where it has none.
io::GgufMetadata gguf_metadata(const models::DecoderConfig& config, const std::string& name, io::GgmlType type);

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; nothing for a name it does not know.
std::optional<std::string> gguf_name(const std::string& name);

// Where a row goes. llama.cpp rotates pairs of neighbours where transformers rotates the halves of a head, so rows of
// q_proj and k_proj of these families are exchanged within each head; all others stay.
class RowOrder {
 public:
  RowOrder(const models::DecoderConfig& config, const std::string& name);
  int64_t operator()(int64_t row) const;

 private:
  int64_t half_ = 0;  // rows of half a head; 0: all stay
};

// What llama.cpp divides the rotary frequencies by; empty where it needs no telling.
std::vector<float> rope_divisors(const models::DecoderConfig& config);

}  // namespace fsdp::app
