#include "kernels/products/nf4/nf4_embedding.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/raw_pointer.h"
#include "kernels/products/nf4/nf4_record.h"
#include "kernels/raw/formats/nf4.h"

namespace fsdp::kernels {
namespace {

// The result, uninitialised, once everything fits.
at::Tensor rows_to_fill(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                        at::ScalarType type) {
  check_nf4_record(record, rows, width);
  check_nf4_type(type);
  TORCH_CHECK(ids.scalar_type() == at::kLong && ids.device() == record.device(), "[nf4] got ids of ", ids.scalar_type(),
              " on ", ids.device(), " and a record on ", record.device(),
              ", expected int64 ids on the record's device.");
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(width);
  return at::empty(sizes, record.options().dtype(type));
}

at::Tensor look_up_on_cpu(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                          at::ScalarType type) {
  at::Tensor y = rows_to_fill(record, rows, width, ids, type);
  const at::Tensor ids_N = ids.contiguous();
  const int64_t* const id = ids_N.const_data_ptr<int64_t>();
  const auto [least, most] = std::minmax_element(id, id + ids_N.numel());
  TORCH_CHECK_INDEX(ids_N.numel() == 0 || (*least >= 0 && *most < rows), "[nf4] got ids from ", *least, " to ", *most,
                    ", expected 0..", rows - 1, " (the table has ", rows, " rows)");
  const raw::Nf4Layout layout{rows * width};
  dispatch_dtype("nf4_embedding", y, [&]<class T>(T) {
    auto* const values = raw_data(y.mutable_data_ptr<T>());
    const uint8_t* const bytes = record.const_data_ptr<uint8_t>();
    parallel_for(0, ids_N.numel(), rows_per_task(width), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) raw::nf4_decode(bytes, layout, id[i] * width, width, values + i * width);
    });
  });
  return y;
}

// Of the elements, numbered through the matrix, fp32.
at::Tensor elements_by_operators(const at::Tensor& record, const raw::Nf4Layout& layout, const at::Tensor& scales,
                                 const at::Tensor& numbers) {
  const at::Tensor codes = record.narrow(0, layout.codes(), (layout.numel + 1) / 2);
  const at::Tensor pair = codes.index_select(0, numbers.bitwise_right_shift(1)).to(at::kLong);
  const at::Tensor place = pair.mul_(2).add_(numbers.bitwise_and(1));
  const at::Tensor block = at::div(numbers, raw::kNf4Block, "floor");
  return nf4_tables(record.device()).pairs.view(-1).index_select(0, place).mul_(scales.index_select(0, block));
}

}  // namespace

at::Tensor nf4_embedding_by_operators(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                                      at::ScalarType type) {
  at::Tensor y = rows_to_fill(record, rows, width, ids, type);
  if (y.numel() == 0) return y;
  const raw::Nf4Layout layout{rows * width};
  const at::Tensor scales = nf4_scales(record, layout), ids_N = ids.reshape({-1}), y_NE = y.view({-1, width});
  const at::Tensor columns = at::arange(width, ids.options());
  const int64_t at_a_time = std::max<int64_t>(1, kNf4DevicePiece / width);
  for (int64_t begin = 0; begin < ids_N.numel(); begin += at_a_time) {
    const int64_t count = std::min(at_a_time, ids_N.numel() - begin);
    const at::Tensor ids_C = ids_N.narrow(0, begin, count);
    const at::Tensor numbers = (ids_C.clamp(0, rows - 1).unsqueeze(1) * width + columns).view(-1);
    const at::Tensor is_outside = ids_C.lt(0).logical_or_(ids_C.ge(rows)).unsqueeze(1);
    const at::Tensor values = elements_by_operators(record, layout, scales, numbers).view({count, width});
    y_NE.narrow(0, begin, count).copy_(values.masked_fill_(is_outside, std::numeric_limits<float>::quiet_NaN()));
  }
  return y;
}

at::Tensor nf4_embedding(const at::Tensor& record, int64_t rows, int64_t width, const at::Tensor& ids,
                         at::ScalarType type) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, int64_t, int64_t, const at::Tensor&, at::ScalarType)>(
          "fsdp::nf4_embedding");
  return op.call(record, rows, width, ids, type);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("nf4_embedding(Tensor record, int rows, int width, Tensor ids, ScalarType type) -> Tensor");
}
TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("nf4_embedding", look_up_on_cpu); }
TORCH_LIBRARY_IMPL(fsdp, CUDA, library) { library.impl("nf4_embedding", nf4_embedding_by_operators); }
TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("nf4_embedding", torch::CppFunction::makeFallthrough());  // bytes have no gradient
}

}  // namespace fsdp::kernels
