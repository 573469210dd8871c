#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "io/tokens/token_shards.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::train {

// The tokenizer that made a data set: that of bytes, or the copy in the data set's folder. Nothing where there is no
// copy, as in data sets of older versions. Throws io::Error(kModel) if the copy is damaged.
std::optional<tokenizer::Tokenizer> tokenizer_of(const io::TokenDataset& data);

// Bytes of text that targets [rows, T] stand for (kNoTarget: none), row by row. Exact for the tokenizer of bytes; for
// others a row that is cut inside a character or a word may miss or gain a few bytes.
int64_t count_text_bytes(const tokenizer::Tokenizer& tokenizer, const at::Tensor& targets_BT);

}  // namespace fsdp::train
