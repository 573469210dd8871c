// Several adapters on one base, of which each token of a forward has its own or none: what generation for several
// users needs. Parameters stay as they are: factors are beside them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace fsdp::models {

// Which adapter each token of the next forward has. One for a decoder, whose maps all ask it.
class TokenAdapters {
 public:
  static constexpr int64_t kNone = -1;

  // The tokens of one adapter: places in the forward's tokens, int64.
  struct Group {
    int64_t adapter = kNone;
    at::Tensor tokens;
  };

  // `numbers`: of the adapter of each token, row after row, or kNone.
  void choose(const std::vector<int64_t>& numbers);
  const std::vector<Group>& groups() const { return groups_; }  // without tokens of kNone
  int64_t num_tokens() const { return num_tokens_; }

 private:
  std::vector<Group> groups_;
  int64_t num_tokens_ = 0;
};

// What an adapter makes of one map: (1 + gain) (W x + scale B A x).
struct ServedFactors {
  at::Tensor a;  // [rank, in]
  at::Tensor b;  // [out, rank]
  double scale = 1;
  at::Tensor gain = {};  // of DoRA, fp32 [out]; undefined: 0
};

// The adapters of one map.
class ServedMap {
 public:
  explicit ServedMap(std::shared_ptr<const TokenAdapters> tokens) : tokens_(std::move(tokens)) {}

  // REQUIRES: that number has none yet.
  void add(int64_t adapter, ServedFactors factors);

  // y [..., out], which is W x, becomes what each token's adapter makes of it, in place; x [..., in]. One product with
  // W was enough for all; those with factors are of the tokens of one adapter. Under a RowwiseScope a token's result
  // does not depend on the others. Throws c10::Error if there are not as many tokens as were chosen for. Without
  // gradients.
  void apply(const at::Tensor& y, const at::Tensor& x) const;

 private:
  std::shared_ptr<const TokenAdapters> tokens_;
  std::map<int64_t, ServedFactors> factors_;
};

}  // namespace fsdp::models
