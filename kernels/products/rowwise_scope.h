// Products in which a row's result does not depend on the rows beside it: what generation promises.
#pragma once

#include <cstdint>

namespace fsdp::kernels {

enum class Rowwise : uint8_t {
  kFewRows,   // few_rows_product(): tokens of texts that are continued
  kManyRows,  // many_rows_product(): prompts
};

// While one lives on this thread, linear() takes this product where gradients are off and the tensors fit. Not a matter
// of gradients alone: what is computed again with gradients must have the bits that it had without. Scopes nest; the
// innermost counts.
class RowwiseScope {
 public:
  explicit RowwiseScope(Rowwise rowwise);
  ~RowwiseScope();
  RowwiseScope(const RowwiseScope&) = delete;
  RowwiseScope& operator=(const RowwiseScope&) = delete;
  // Whether the innermost scope is of this kind.
  static bool is(Rowwise rowwise);

 private:
  const RowwiseScope* outer_;
  Rowwise rowwise_;
};

}  // namespace fsdp::kernels
