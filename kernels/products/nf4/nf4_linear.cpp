#include "kernels/products/nf4/nf4_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/linear_parts.h"
#include "kernels/products/nf4/nf4_record.h"
#include "kernels/raw/formats/nf4.h"

namespace fsdp::kernels {
namespace {

// Of a task on the CPU: whole blocks.
constexpr int64_t kBlocksPerTask = 256;

at::Tensor decode_on_cpu(const at::Tensor& record, int64_t out, int64_t in, at::ScalarType type) {
  check_nf4_record(record, out, in);
  check_nf4_type(type);
  at::Tensor weight = at::empty({out, in}, at::TensorOptions().dtype(type));
  const raw::Nf4Layout layout{out * in};
  dispatch_dtype("decode_nf4", weight, [&]<class T>(T) {
    auto* const values = raw_data(weight.mutable_data_ptr<T>());
    const uint8_t* const bytes = record.const_data_ptr<uint8_t>();
    parallel_for(0, layout.num_blocks(), kBlocksPerTask, [&](int64_t first_block, int64_t last_block) {
      const int64_t first = first_block * raw::kNf4Block, last = std::min(layout.numel, last_block * raw::kNf4Block);
      raw::nf4_decode(bytes, layout, first, last - first, values + first);
    });
  });
  return weight;
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& record, int64_t out) {
  return product(x, decode_nf4(record, out, x.size(-1), x.scalar_type()));
}

struct Nf4Linear : torch::autograd::Function<Nf4Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& record,
                            int64_t out) {
    context->save_for_backward({record});
    context->saved_data["out"] = out;
    context->saved_data["in"] = x.size(-1);
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return linear_forward(x, record, out);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor record = context->get_saved_variables()[0];
    const at::Tensor grad = grads[0].contiguous();
    torch::autograd::variable_list result(3);
    if (!context->needs_input_grad(0)) return result;
    const int64_t out = context->saved_data["out"].toInt(), in = context->saved_data["in"].toInt();
    result[0] = product(grad, decode_nf4(record, out, in, grad.scalar_type()).t());
    return once_differentiable("nf4_linear", "torch::linear of decode_nf4()", grads, std::move(result));
  }
};

at::Tensor differentiable_nf4_linear(const at::Tensor& x, const at::Tensor& record, int64_t out) {
  return Nf4Linear::apply(x, record, out);
}

}  // namespace

int64_t nf4_bytes(int64_t numel) { return raw::Nf4Layout{numel}.num_bytes(); }

at::Tensor decode_nf4_by_operators(const at::Tensor& record, int64_t out, int64_t in, at::ScalarType type) {
  check_nf4_record(record, out, in);
  check_nf4_type(type);
  const raw::Nf4Layout layout{out * in};
  at::Tensor weight = at::empty({layout.numel}, record.options().dtype(type));
  if (layout.numel == 0) return weight.view({out, in});
  const at::Tensor scales = nf4_scales(record, layout), pairs = nf4_tables(record.device()).pairs;
  for (int64_t first = 0; first < layout.numel; first += kNf4DevicePiece) {
    const int64_t count = std::min(kNf4DevicePiece, layout.numel - first), pairs_here = (count + 1) / 2;
    const at::Tensor bytes = record.narrow(0, layout.codes() + first / 2, pairs_here);
    at::Tensor values = pairs.index_select(0, bytes.to(at::kInt)).view(-1).narrow(0, 0, count);
    const int64_t blocks = (count + raw::kNf4Block - 1) / raw::kNf4Block;
    const at::Tensor own = scales.narrow(0, first / raw::kNf4Block, blocks);
    if (count % raw::kNf4Block == 0) {
      values = values.view({blocks, raw::kNf4Block}).mul_(own.unsqueeze(1)).view(-1);
    } else {
      values.mul_(own.repeat_interleave(raw::kNf4Block).narrow(0, 0, count));
    }
    weight.narrow(0, first, count).copy_(values);
  }
  return weight.view({out, in});
}

at::Tensor decode_nf4(const at::Tensor& record, int64_t out, int64_t in, at::ScalarType type) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, int64_t, int64_t, at::ScalarType)>("fsdp::decode_nf4");
  return op.call(record, out, in, type);
}

at::Tensor nf4_linear(const at::Tensor& x, const at::Tensor& record, int64_t out) {
  TORCH_CHECK(x.dim() >= 1 && x.device() == record.device(), "[nf4] got x ", x.sizes(), " on ", x.device(),
              " and a record on ", record.device(), ", expected both on one device and x [..., in].");
  check_nf4_record(record, out, x.size(-1));
  check_nf4_type(x.scalar_type());
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>("fsdp::nf4_linear");
  return op.call(x, record, out);
}

at::Tensor encode_nf4(const at::Tensor& weight) {
  TORCH_CHECK(weight.is_cpu(), "[nf4] got a weight on ", weight.device(), ", expected the CPU.");
  const at::Tensor values = weight.detach().to(at::kFloat).contiguous();
  TORCH_CHECK(at::isfinite(values).all().item<bool>(), "[nf4] got a weight with numbers that are not finite.");
  const raw::Nf4Layout layout{values.numel()};
  at::Tensor record = at::empty({layout.num_bytes()}, at::kByte);
  std::vector<float> scales(static_cast<size_t>(layout.num_blocks()));
  uint8_t* const bytes = record.mutable_data_ptr<uint8_t>();
  raw::nf4_encode(values.const_data_ptr<float>(), layout.numel, scales.data(), bytes + layout.codes());
  raw::nf4_encode_scales(scales.data(), layout, bytes);
  return record;
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("nf4_linear(Tensor x, Tensor record, int rows) -> Tensor");
  library.def("decode_nf4(Tensor record, int rows, int columns, ScalarType type) -> Tensor");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("nf4_linear", linear_forward);
  library.impl("decode_nf4", decode_on_cpu);
}

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("nf4_linear", linear_forward);
  library.impl("decode_nf4", decode_nf4_by_operators);
}

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("nf4_linear", differentiable_nf4_linear);
  library.impl("decode_nf4", torch::CppFunction::makeFallthrough());  // bytes have no gradient
}

}  // namespace fsdp::kernels
