#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fsdp/fsdp.h"
#include "models/decoder.h"

namespace fsdp::train {

// The ranks over which layers and sequences are cut, connected: cuts a decoder and has it compute as one that is cut.
// After: Shoeybi et al. 2019 (Megatron-LM), Korthikanti et al. 2022 (sequence parallelism).
class Axes {
 public:
  // COLLECTIVE. Nothing where the mesh has no "tp" or "cp" of more than one rank.
  // `heads`: of keys and values, of which each is on several ranks along "tp" where there are fewer of them.
  static std::shared_ptr<Axes> of(const Mesh& mesh, parallel::ContextExchange exchange, int64_t heads);
  Axes(const Mesh& mesh, parallel::ContextExchange exchange, int64_t heads);

  // Keeps this rank's part of a parameter, where parameters of that name are cut. The parameter may be deferred: then
  // it is whole only while it is made. Local.
  void cut(const std::string& name, const at::Tensor& parameter) const;
  // Of a decoder that was cut: layers compute across ranks, and gradients of what all ranks have alike, of which each
  // sees a part, are added up. Before it is sharded. Local.
  void connect(models::Decoder& decoder) const;

  // Of what the ranks along "cp" have of sequences, dimension `dim`: the whole. COLLECTIVE over them.
  at::Tensor whole_sequences(const at::Tensor& parts, int64_t dim) const;

 private:
  void sum_gradients(const at::Tensor& parameter, const std::string& name) const;

  std::shared_ptr<parallel::Ranks> tensor_, context_;
  std::shared_ptr<parallel::Ranks> heads_;   // of those along "tp", with one copy of each head of keys and values
  std::shared_ptr<parallel::Ranks> copies_;  // of those, with the same head
  parallel::ContextExchange exchange_;
};

// What mesh.cp_exchange (auto, gather or ring) comes to on shard.device. A ring needs messages, which some lack.
parallel::ContextExchange exchange_on(const std::string& device, const std::string& asked);

// Along which dimension the parameter of a decoder is cut: maps from the hidden state by outputs, maps to it by inputs,
// embedding and head by the vocabulary, adapters where their map is. None: all ranks have it alike.
std::optional<int64_t> cut_dimension(const std::string& name);

}  // namespace fsdp::train
