#include <fsdp/fsdp.h>
#include <kernels/operators/cross_entropy.h>
#include <kernels/operators/embedding.h>
#include <kernels/products/fused_linear.h>
#include <kernels/products/linear.h>
#include <torch/torch.h>

int main() {
  const fsdp::InitOptions init{.deadline = std::chrono::seconds(60)};
  const fsdp::Precision precision{.param = torch::kBFloat16};
  const fsdp::ShardOptions by_strategy{.strategy = fsdp::Strategy::kOptim};
  const fsdp::ShardOptions by_precision{.precision = precision, .unused = fsdp::UnusedUnit::kZeros};
  const fsdp::AdamWOptions adamw{.lr = 1e-3};
  const fsdp::SGDOptions sgd{.lr = 1e-3};
  const fsdp::checkpoint::SaverOptions saver{.keep_last = 3};
  const bool are_kept = init.deadline.count() == 60'000 && by_strategy.precision == fsdp::Precision{} &&
                        by_precision.precision == precision && adamw.lr == sgd.lr && saver.keep_last == 3;
  const at::Tensor rows = torch::ones({2, 3});
  const bool are_equal = torch::equal(fsdp::kernels::linear(rows, rows), torch::full({2, 2}, 3));
  return are_kept && are_equal ? 0 : 1;
}
