// What a decoder-only language model is made of, and Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::models {

// Rotary position embedding: angle(position, i) = position * frequency(i), frequency(i) = theta^(-2i / head_dim), for
// kLlama3 with low frequencies divided by `factor` (Llama 3.1's extension of the context).
struct RopeConfig {
  enum class Kind { kDefault, kLlama3 };

  Kind kind = Kind::kDefault;
  double theta = 1e4;
  // Read by kLlama3 only.
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

// Which projections of the attention block add a bias.
enum class AttentionBias { kNone, kInputs, kInputsAndOutput };  // kInputs: q, k and v

// Keys and values of all heads made of a short vector a token (multi-head latent attention, DeepSeek-V2). A head's
// queries and keys have head_dim numbers, of which the last rope_dim turn with the position.
struct LatentConfig {
  int64_t rank = 0;        // of that vector: kv_lora_rank; 0: ordinary attention
  int64_t query_rank = 0;  // of the same for queries: q_lora_rank; 0: none
  int64_t rope_dim = 0;    // qk_rope_head_dim
  int64_t value_dim = 0;   // of a head: v_head_dim, at most head_dim
};

// Experts in place of the MLP of some layers: each token takes a few of them, and all that are shared.
struct ExpertsConfig {
  int64_t count = 0;              // 0: no layer has experts
  int64_t per_token = 0;          // that a token chooses
  int64_t inner_size = 0;         // of one expert: its intermediate_size
  int64_t shared_inner_size = 0;  // of what every token takes beside those it chooses; 0: nothing
  bool normalise = true;          // the weights of a token's experts add up to 1, before `scale`
  double scale = 1;               // of those weights
  int64_t groups = 1;             // equal parts of the experts; a token chooses in the best of them only
  int64_t best_groups = 1;
  std::vector<bool> dense_layers;  // one per layer: has an MLP of intermediate_size all the same; empty: none has
  double balance_loss = 0.001;     // factor of the loss that keeps experts equally busy: router_aux_loss_coef
};

// A decoder of one of the supported families; plain data. Names are those of config.json, where it has them.
struct DecoderConfig {
  std::string model_type = "llama";  // one of model_types()
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  AttentionBias attention_bias = AttentionBias::kNone;
  LatentConfig latent;
  bool has_qk_norm = false;  // RMS norm of each head's query and key, before the rotary embedding
  RopeConfig rope;
  std::vector<bool> no_rope_layers;  // one per layer; true = the layer HAS a rotary embedding (Hugging Face's reading)
  int64_t sliding_window = 0;        // a token sees so many, the last of them itself; 0: all before it
  std::vector<bool> sliding_layers;  // one per layer: has the window; empty: all have it
  ExpertsConfig experts;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 2048;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  // Keys of the file that nobody here knows; they were ignored. One line each, for the user.
  std::vector<std::string> warnings;

  // True if layer `layer` rotates queries and keys; an empty list means that all do.
  bool has_rope(int64_t layer) const;
  // The window of layer `layer`; 0: none.
  int64_t window(int64_t layer) const;
  // How many numbers of a head turn with the position.
  int64_t rotary_dim() const { return latent.rank > 0 ? latent.rope_dim : head_dim; }
  // True if layer `layer` has experts in place of its MLP.
  bool has_experts(int64_t layer) const;
};

// The values of model_type that are understood: llama (Llama 2 and 3, SmolLM2), smollm3, mistral, qwen2 (and 2.5),
// qwen3, and with experts mixtral, qwen3_moe and deepseek_v2.
const std::vector<std::string>& model_types();

// What the family `model_type` brings of itself: biases, norms, tied embeddings, rotary base. Sizes are 0. Throws
// io::Error(kUsage) for an unknown family.
DecoderConfig family_config(const std::string& model_type);

// Reads `path`, a config.json or the folder that holds one, in the layout of transformers 4 or 5.
// Throws io::Error(kModel) with ONE table of everything that is missing, out of range or not supported: key, value
// found, what is supported. A setting that would change the maths is never ignored.
DecoderConfig read_decoder_config(const std::filesystem::path& path);

// The same from parsed JSON; `origin` names it in messages.
DecoderConfig parse_decoder_config(const nlohmann::json& json, const std::string& origin);

// config.json in the layout of transformers 5; parse_decoder_config() gives `config` back.
nlohmann::json to_hugging_face(const DecoderConfig& config);

// Number of parameters; a tied weight counts once.
int64_t num_parameters(const DecoderConfig& config);

// Of those, what one token is computed with: of experts as many as it takes.
int64_t num_active_parameters(const DecoderConfig& config);

// Floating point operations of the model per token, forward and backward, with causal attention over `sequence_length`
// tokens: 6 (L P + V h) + 12 L n H d, where P are the matrix parameters of one layer that a token
// meets, and n is the mean number of
// tokens that one sees: (s + 1) / 2 without a window. Look-ups, norms and softmax count nothing; recomputation does not
// count.
double flops_per_token(const DecoderConfig& config, int64_t sequence_length);

}  // namespace fsdp::models
