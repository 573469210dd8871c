#include "plan/products/product_kernels.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/raw/rows/logit_limits.h"

namespace fsdp::plan {
namespace {

// What a product of a size took that had not been there: benchmarks/plan_memory.cpp.
constexpr int64_t kBytesOfSize = 840 << 10;
constexpr int64_t kPieceNumel = int64_t{1} << 17;  // of a gradient of bf16 weights: kernels/products/linear.cpp

// Products by a weight, by its transpose, and of a weight's gradient are different ones to oneDNN.
enum class ProductPass { kForward, kBackward, kGradient };
// Rows, columns and depth.
using Size = std::tuple<ProductPass, int64_t, int64_t, int64_t>;

class Sizes {
 public:
  explicit Sizes(io::DType type) : type_(type) {}

  // A map [out, in], used by so many rows.
  void add(int64_t rows, int64_t out, int64_t in) {
    sizes_.emplace(ProductPass::kForward, rows, out, in);
    sizes_.emplace(ProductPass::kBackward, rows, in, out);
    if (type_ == io::DType::F32) return;  // its gradient is computed by our own product
    const int64_t piece = std::clamp<int64_t>(kPieceNumel / in, 1, out);
    sizes_.emplace(ProductPass::kGradient, piece, in, rows);
    if (out % piece > 0) sizes_.emplace(ProductPass::kGradient, out % piece, in, rows);
  }
  int64_t bytes() const { return static_cast<int64_t>(sizes_.size()) * kBytesOfSize; }

 private:
  io::DType type_;
  std::set<Size> sizes_;
};

}  // namespace

int64_t product_kernel_bytes(const models::DecoderConfig& part, int64_t tokens, io::DType type, Head head) {
  Sizes sizes(type);
  const int64_t hidden = part.hidden_size, queries = part.num_attention_heads * part.head_dim;
  const int64_t keys = part.num_key_value_heads * part.head_dim;
  sizes.add(tokens, queries, hidden);
  sizes.add(tokens, keys, hidden);
  sizes.add(tokens, hidden, queries);
  sizes.add(tokens, part.intermediate_size, hidden);
  sizes.add(tokens, hidden, part.intermediate_size);
  if (head == Head::kElsewhere) return sizes.bytes();
  const int64_t row_bytes = part.vocab_size * static_cast<int64_t>(io::item_size(type));
  const int64_t logits = tokens * row_bytes;
  const int64_t rows =
      logits <= kernels::kMostLogitBytesKept ? tokens : kernels::logit_rows_at_a_time(tokens, row_bytes);
  sizes.add(rows, part.vocab_size, hidden);
  if (tokens % rows > 0) sizes.add(tokens % rows, part.vocab_size, hidden);
  return sizes.bytes();
}

}  // namespace fsdp::plan
