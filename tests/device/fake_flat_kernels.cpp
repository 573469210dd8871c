#include "tests/device/fake_flat_kernels.h"

#include <torch/torch.h>

#include "fsdp/base/stream_point.h"
#include "kernels/flat/flat_kernels.h"
#include "kernels/flat/pack.h"
#include "kernels/flat/sum_chunks.h"
#include "kernels/flat/sum_squares.h"
#include "tests/device/fake_device.h"

namespace fsdp::testing {
namespace {

// What a kernel reads and writes, on the current stream of `where`.
void note(const char* name, const at::Tensor& where, at::TensorList reads, at::TensorList writes) {
  std::vector<Access> accesses;
  const auto add = [&](const at::Tensor& tensor, bool is_write) {
    if (!tensor.defined()) return;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    accesses.push_back({begin, begin + tensor.nbytes(), is_write});
  };
  for (const at::Tensor& tensor : reads) add(tensor, false);
  for (const at::Tensor& tensor : writes) add(tensor, true);
  stream_clocks().run(key_of(current_stream(where.device())), name, "", accesses);
}

void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const kernels::AdamWStep& step) {
  kernels::AdamWStep on_host = step;
  on_host.gradient_scale = on_cpu(step.gradient_scale);
  kernels::adamw_step(on_cpu(weight), on_cpu(gradient), on_cpu(m), on_cpu(v), on_cpu(copy), on_host);
  note("adamw_step", weight, {gradient, step.gradient_scale}, {weight, m, v, copy});
}

void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const kernels::SGDStep& step) {
  kernels::SGDStep on_host = step;
  on_host.gradient_scale = on_cpu(step.gradient_scale);
  kernels::sgd_step(on_cpu(weight), on_cpu(gradient), on_cpu(buffer), on_cpu(copy), on_host);
  note("sgd_step", weight, {gradient, step.gradient_scale}, {weight, buffer, copy});
}

void lion_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& copy,
               const kernels::LionStep& step) {
  kernels::LionStep on_host = step;
  on_host.gradient_scale = on_cpu(step.gradient_scale);
  kernels::lion_step(on_cpu(weight), on_cpu(gradient), on_cpu(momentum), on_cpu(copy), on_host);
  note("lion_step", weight, {gradient, step.gradient_scale}, {weight, momentum, copy});
}

void schedule_free_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                        const at::Tensor& squares, const at::Tensor& copy, const kernels::ScheduleFreeStep& step) {
  kernels::ScheduleFreeStep on_host = step;
  on_host.gradient_scale = on_cpu(step.gradient_scale);
  kernels::schedule_free_step(on_cpu(weight), on_cpu(gradient), on_cpu(iterate), on_cpu(squares), on_cpu(copy),
                              on_host);
  note("schedule_free_step", weight, {gradient, step.gradient_scale}, {weight, iterate, squares, copy});
}

void low_bit_adamw_step(const kernels::KeptWeights& weights, const at::Tensor& gradient,
                        const kernels::CodedMoment& first, const kernels::CodedMoment& second, const at::Tensor& copy,
                        const kernels::AdamWStep& step) {
  kernels::AdamWStep on_host = step;
  on_host.gradient_scale = on_cpu(step.gradient_scale);
  const auto moment = [](const kernels::CodedMoment& each) {
    return kernels::CodedMoment{on_cpu(each.codes), on_cpu(each.scales), each.code};
  };
  kernels::low_bit_adamw_step({on_cpu(weights.weight)}, on_cpu(gradient), moment(first), moment(second), on_cpu(copy),
                              on_host);
  note("low_bit_adamw_step", weights.weight, {gradient, step.gradient_scale},
       {weights.weight, first.codes, first.scales, second.codes, second.scales, copy});
}

void pack_gradient(const at::Tensor& destination, const at::Tensor& gradient, double scale, bool add) {
  kernels::pack_gradient(on_cpu(destination), on_cpu(gradient), scale, add);
  note("pack_gradient", destination, {gradient}, {destination});
}

void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add) {
  std::vector<at::Tensor> on_host;
  for (const at::Tensor& chunk : chunks) on_host.push_back(on_cpu(chunk));
  kernels::sum_chunks(on_cpu(output), on_host, add);
  note("sum_chunks", output, chunks, {output});
}

at::Tensor sum_squares(const at::Tensor& values) {
  const at::Tensor sum = at::empty({}, values.options().dtype(at::kDouble));
  *on_cpu(sum).mutable_data_ptr<double>() = kernels::sum_squares(on_cpu(values));
  note("sum_squares", values, {values}, {sum});
  return sum;
}

constexpr kernels::FlatKernels kKernels{&adamw_step,         &sgd_step,      &lion_step,  &schedule_free_step,
                                        &low_bit_adamw_step, &pack_gradient, &sum_chunks, &sum_squares};

}  // namespace

FakeFlatKernels::FakeFlatKernels() { kernels::set_flat_kernels(c10::kPrivateUse1, &kKernels); }
FakeFlatKernels::~FakeFlatKernels() { kernels::set_flat_kernels(c10::kPrivateUse1, nullptr); }

}  // namespace fsdp::testing
