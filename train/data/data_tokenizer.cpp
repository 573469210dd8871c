#include "train/data/data_tokenizer.h"

#include <ATen/ATen.h>

#include <vector>

#include "text/tokenizer/byte_tokenizer.h"
#include "train/data/data_splits.h"

namespace fsdp::train {

std::optional<tokenizer::Tokenizer> tokenizer_of(const io::TokenDataset& data) {
  if (data.tokenizer() == byte_tokenizer::kName) return tokenizer::Tokenizer::bytes();
  const std::filesystem::path folder = tokenizer_folder(data);
  return folder.empty() ? std::nullopt : std::optional(tokenizer::Tokenizer::load(folder));
}

int64_t count_text_bytes(const tokenizer::Tokenizer& tokenizer, const at::Tensor& targets_BT) {
  if (tokenizer.name() == byte_tokenizer::kName) {
    return at::logical_and(targets_BT.ge(0), targets_BT.lt(byte_tokenizer::kBegin)).sum().item<int64_t>();
  }
  int64_t bytes = 0;
  std::vector<int32_t> ids;
  for (int64_t row = 0; row < targets_BT.size(0); ++row) {
    const at::Tensor targets_T = targets_BT.select(0, row).contiguous();
    ids.clear();
    for (int64_t i = 0; i < targets_T.numel(); ++i) {
      const int64_t id = targets_T.const_data_ptr<int64_t>()[i];
      if (id >= 0) ids.push_back(static_cast<int32_t>(id));
    }
    bytes += static_cast<int64_t>(tokenizer.decode(ids, tokenizer::SkipSpecial::kYes).size());
  }
  return bytes;
}

}  // namespace fsdp::train
