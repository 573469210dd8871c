// A decoder that keeps linear maps as 4-bit codes, those of its blocks or embeddings and head too: the base of QLoRA's
// adapters.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "models/decoder.h"

namespace fsdp::models {

// LinearImpl::keep_as_nf4() of every linear map of the blocks that is not kept so yet, with an adapter or not;
// embeddings, norms, biases and the head stay. Before fully_shard(); may be deferred.
void keep_blocks_as_nf4(const Decoder& decoder);

// The same, and embeddings and head, which are one tensor where they are tied: all matrices.
void keep_all_as_nf4(const Decoder& decoder);

// The weight [out, in] that codes stand for.
struct CodedWeight {
  std::string name;  // that files have it under
  int64_t out = 0, in = 0;
};
// By the names of the parameters that are codes; empty where none are.
std::map<std::string, CodedWeight> coded_weights(const Decoder& decoder);

}  // namespace fsdp::models
