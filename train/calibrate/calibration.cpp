#include "train/calibrate/calibration.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "fsdp/base/error.h"
#include "kernels/operators/causal_attention.h"
#include "kernels/products/linear.h"
#include "plan/time/product_line.h"
#include "train/calibrate/turns.h"

namespace fsdp::train {
namespace {

using plan::time::Product;
using plan::time::ProductLine;
using plan::time::ProductSample;

// One of a linear layer's three products, which are equally large.
class TimedProducts {
 public:
  TimedProducts(TimedTurns& turns, c10::ScalarType dtype) : turns_(turns) {
    for (const Product& product : kProducts) {
      const at::TensorOptions options = at::dtype(dtype);
      const at::Tensor x = at::full({product.m, product.k}, 0.5, options).requires_grad_();
      const at::Tensor weight = at::full({product.n, product.k}, 0.25, options).requires_grad_();
      const at::Tensor gradient = at::full({product.m, product.n}, 0.125, options);
      numbers_.push_back(turns.add([=] {
        kernels::linear(x, weight).backward(gradient);
        x.mutable_grad().reset();
        weight.mutable_grad().reset();
      }));
    }
  }
  ProductLine line() const {
    std::vector<ProductSample> samples;
    for (size_t i = 0; i < numbers_.size(); ++i)
      samples.push_back({kProducts[i].flops(), turns_.seconds_of(numbers_[i]) / 3});
    return plan::time::fit_product_line(samples);
  }

 private:
  static constexpr Product kProducts[] = {{64, 256, 256, 1},  {256, 256, 256, 1},  {256, 768, 256, 1},
                                          {512, 512, 512, 1}, {1024, 512, 512, 1}, {1024, 1536, 512, 1},
                                          {512, 4096, 512, 1}};
  TimedTurns& turns_;
  std::vector<size_t> numbers_;
};

constexpr int64_t kHeads = 4, kWidth = 64;

// Of some sequences so long; forward alone, and with its backward.
struct TimedAttention {
  using Run = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;
  TimedAttention(TimedTurns& turns, c10::ScalarType dtype, const std::vector<int64_t>& query_sizes,
                 const std::vector<int64_t>& key_sizes, const Run& run) {
    const at::TensorOptions options = at::dtype(dtype);
    const at::Tensor q = at::full(query_sizes, 0.1, options).requires_grad_();
    const at::Tensor k = at::full(key_sizes, 0.1, options).requires_grad_(), v = k.detach().clone().requires_grad_();
    const at::Tensor gradient = at::full(query_sizes, 0.1, options);
    forward = turns.add([=] { run(q, k, v); });
    both = turns.add([=] {
      run(q, k, v).backward(gradient);
      for (const at::Tensor& input : {q, k, v}) input.mutable_grad().reset();
    });
  }
  size_t forward, both;
};

// seconds of a query and head = row + operations / rate, from two lengths of sequences.
struct AttentionLine {
  double flops_per_second, row_us;
};

class TimedCausalAttention {
 public:
  TimedCausalAttention(TimedTurns& turns, c10::ScalarType dtype)
      : turns_(turns), short_(of(turns, dtype, kShort)), long_(of(turns, dtype, kLong)) {}

  AttentionLine forward() const { return line(turns_.seconds_of(short_.forward), turns_.seconds_of(long_.forward), 1); }
  AttentionLine backward() const {
    const auto alone = [this](const TimedAttention& each) {
      const double forward = turns_.seconds_of(each.forward);
      return std::max(turns_.seconds_of(each.both) - forward, forward);
    };
    return line(alone(short_), alone(long_), 2.5);
  }

 private:
  static constexpr int64_t kShort = 128, kLong = 512, kTokens = 1024;

  static TimedAttention of(TimedTurns& turns, c10::ScalarType dtype, int64_t length) {
    const std::vector<int64_t> sizes = {kTokens / length, length, kHeads, kWidth};
    return {turns, dtype, sizes, sizes, [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
              return kernels::causal_attention(q, k, v);
            }};
  }
  static double row_flops(int64_t length) { return 4.0 * kWidth * static_cast<double>(length + 1) / 2; }
  static AttentionLine line(double of_short, double of_long, double passes) {
    constexpr double kRows = kTokens * kHeads;
    const double slope = (of_long - of_short) / kRows / (passes * (row_flops(kLong) - row_flops(kShort)));
    const double of_all = of_long / kRows / (passes * row_flops(kLong));  // as if a row cost nothing
    if (!(slope > 0) || slope > of_all) return {1 / of_all, 0};
    return {1 / slope, 1e6 * (of_long / kRows - passes * row_flops(kLong) * slope)};
  }

  TimedTurns& turns_;
  TimedAttention short_, long_;
};

// As between ranks that share sequences (fsdp/parallel/context_attention.h).
class TimedMaskedAttention {
 public:
  TimedMaskedAttention(TimedTurns& turns, c10::ScalarType dtype) : turns_(turns), attention_(of(turns, dtype)) {}

  double forward_rate() const { return kFlops / turns_.seconds_of(attention_.forward); }
  double backward_rate() const {
    const double forward = turns_.seconds_of(attention_.forward);
    return 2.5 * kFlops / std::max(turns_.seconds_of(attention_.both) - forward, forward);
  }

 private:
  static constexpr int64_t kQueries = 128, kKeys = 256, kRows = 2;
  static constexpr double kFlops = 4.0 * kRows * kHeads * kQueries * kKeys * kWidth;

  static TimedAttention of(TimedTurns& turns, c10::ScalarType dtype) {
    at::Tensor mask = at::zeros({kRows, 1, kQueries, kKeys}, at::dtype(dtype));
    mask.narrow(-1, kKeys - kQueries, kQueries)
        .copy_(at::full({kQueries, kQueries}, -std::numeric_limits<double>::infinity(), mask.options()).triu(1));
    return {turns,
            dtype,
            {kRows, kHeads, kQueries, kWidth},
            {kRows, kHeads, kKeys, kWidth},
            [mask](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
              return at::scaled_dot_product_attention(q, k, v, mask);
            }};
  }

  TimedTurns& turns_;
  TimedAttention attention_;
};

// Operators whose work is nothing, forward and backward, between products that left the caches to themselves.
class TimedOperators {
 public:
  explicit TimedOperators(TimedTurns& turns) : turns_(turns) {
    const at::Tensor x = at::full({kSide, kSide}, 0.5).requires_grad_(), order = at::arange(kSide).flip(0);
    number_ = turns.add([=] {
      const at::Tensor ordered = x.index_select(0, order) * 0.5;
      const at::Tensor whole = at::cat({ordered.narrow(0, 0, kSide / 2), ordered.narrow(0, kSide / 2, kSide / 2)});
      (whole + x).view({-1}).sum().backward();
      x.mutable_grad().reset();
    });
  }
  double operator_us() const { return 1e6 * turns_.seconds_of(number_) / (2 * kOperators); }

 private:
  static constexpr int64_t kSide = 32;
  static constexpr int kOperators = 8;

  TimedTurns& turns_;
  size_t number_;
};

// A pass that reads two buffers and writes one, all larger than a cache.
class TimedMemory {
 public:
  explicit TimedMemory(TimedTurns& turns) : turns_(turns) {
    const at::Tensor sum = at::ones({kNumel}), summand = at::ones({kNumel});
    number_ = turns.add([=] { sum.add_(summand); });
  }
  double bytes_per_second() const { return 3.0 * 4 * kNumel / turns_.seconds_of(number_); }

 private:
  static constexpr int64_t kNumel = int64_t{16} << 20;

  TimedTurns& turns_;
  size_t number_;
};

}  // namespace

plan::time::Hardware calibrate_cpu(c10::ScalarType dtype, double seconds) {
  if (dtype != at::kFloat && dtype != at::kBFloat16)
    throw Error(ErrorCode::kUsage,
                std::string("[calibrate] dtype: got ") + c10::toString(dtype) + ", expected Float or BFloat16.");
  TimedTurns turns;
  const TimedProducts products(turns, dtype);
  const TimedCausalAttention attention(turns, dtype);
  const TimedMaskedAttention masked(turns, dtype);
  const TimedOperators operators(turns);
  const TimedMemory memory(turns);
  turns.run(seconds);
  const ProductLine line = products.line();
  const AttentionLine forward = attention.forward(), backward = attention.backward();
  const auto share = [&](double rate) { return std::min(1.0, rate / line.flops_per_second); };
  plan::time::Hardware hardware = plan::time::find_hardware("cpu-core");
  hardware.name = "this machine";
  hardware.peak_flops = {
      {dtype == at::kFloat ? plan::time::Dtype::kFp32 : plan::time::Dtype::kBf16, line.flops_per_second}};
  hardware.product_efficiency = 1;
  hardware.launch_us = 1e6 * line.overhead_seconds;
  hardware.operator_us = operators.operator_us();
  hardware.attention_forward_efficiency = share(forward.flops_per_second);
  hardware.attention_backward_efficiency = share(backward.flops_per_second);
  hardware.attention_forward_row_us = forward.row_us;
  hardware.attention_backward_row_us = backward.row_us;
  hardware.masked_attention_forward_efficiency = share(masked.forward_rate());
  hardware.masked_attention_backward_efficiency = share(masked.backward_rate());
  hardware.memory_bytes_per_second = memory.bytes_per_second();
  hardware.memory_efficiency = 1;
  return hardware;
}

}  // namespace fsdp::train
