#include "kernels/products/rowwise_scope.h"

namespace fsdp::kernels {
namespace {

thread_local const RowwiseScope* innermost = nullptr;

}  // namespace

RowwiseScope::RowwiseScope(Rowwise rowwise) : outer_(innermost), rowwise_(rowwise) { innermost = this; }
RowwiseScope::~RowwiseScope() { innermost = outer_; }
bool RowwiseScope::is(Rowwise rowwise) { return innermost != nullptr && innermost->rowwise_ == rowwise; }

}  // namespace fsdp::kernels
