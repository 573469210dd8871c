// Launches of the model's kernels; what they compute is told in
// kernels/{rms_norm,swiglu,rope,embedding,cross_entropy}.h. All return at once, with the error of the launch, and
// launch nothing where there is nothing to do. Arrays are dense and row-major unless strides say otherwise, and may
// start anywhere: kernels take 16 bytes at a time where pointers and sizes allow it. Results depend on the inputs and
// their sizes only. No LibTorch: nvcc reads this.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fsdp::kernels::cuda {

// What an array of activations or weights holds.
enum class Element : uint8_t { kFloat, kBFloat16, kHalf };

// x, y [rows, width], weight [width], rstd [rows].
// With a residual, not null, `sum` is x + residual and what is normalised.
struct RmsNormForward {
  const void *x, *residual, *weight;
  void *sum, *y;
  float* rstd;
  Element element;
  int64_t rows, width;
  float eps;
};
cudaError_t launch_rms_norm_forward(const RmsNormForward& arrays, cudaStream_t stream);

// grad_weight [width] is a sum of partials [num_rms_norm_partials(rows), width], which are scratch. x is what was
// normalised; with grad_sum, not null, that is added to its gradient.
struct RmsNormBackward {
  const void *grad_y, *grad_sum, *x, *weight;
  const float* rstd;
  void *grad_x, *grad_weight;
  float* partials;
  Element element;
  int64_t rows, width;
};
int64_t num_rms_norm_partials(int64_t rows);
cudaError_t launch_rms_norm_backward(const RmsNormBackward& arrays, cudaStream_t stream);

// All [n].
// Rows of gate and up are dense, those of y follow each other.
struct SwiGluForward {
  const void *gate, *up;
  void* y;
  Element element;
  int64_t rows, width;
  int64_t gate_stride, up_stride;
};
cudaError_t launch_swiglu_forward(const SwiGluForward& arrays, cudaStream_t stream);

struct SwiGluBackward {
  const void *grad_y, *gate, *up;
  void *grad_gate, *grad_up;
  Element element;
  int64_t rows, width;
  int64_t gate_stride, up_stride, grad_stride;
};
cudaError_t launch_swiglu_backward(const SwiGluBackward& arrays, cudaStream_t stream);

// Of [rows, length, heads, dim], the last stride being 1.
struct HeadStrides {
  int64_t row, token, head;
};
// `to` may be `from`.
struct RopeHeads {
  const void* from;
  void* to;
  int64_t heads;
  HeadStrides from_strides, to_strides;
};
enum class Turn : uint8_t { kForward, kBackward };
// cos, sin [length, dim], or [rows, length, dim] where table_stride, that of their rows, is not 0.
struct Rope {
  RopeHeads q, k;
  const void *cos, *sin;
  int64_t table_stride;
  Element element;
  int64_t rows, length, dim;
  Turn turn;
};
cudaError_t launch_rope(const Rope& arrays, cudaStream_t stream);

// y [n, width] = rows `ids` [n] of table [table_rows, width]; NaN where the table has no such row.
struct EmbeddingRows {
  const void* table;
  const int64_t* ids;
  void* y;
  Element element;
  int64_t n, table_rows, width;
};
cudaError_t launch_embedding_rows(const EmbeddingRows& arrays, cudaStream_t stream);

enum class Fill : uint8_t { kWrite, kAdd };
// table[sorted_ids[i]] = or += scale * grad[order[i]], summed over equal ids in the order of i; other rows are left as
// they are, and ids that the table lacks are passed over. grad [n, width], table [table_rows, width] of grad's element
// or fp32.
struct EmbeddingGradient {
  const int64_t *sorted_ids, *order;
  const void* grad;
  Element grad_element;
  void* table;
  Element table_element;
  int64_t n, table_rows, width;
  float scale;
  Fill fill;
};
cudaError_t launch_embedding_gradient(const EmbeddingGradient& arrays, cudaStream_t stream);

// Rows of a cross entropy: logits [rows, vocab], targets [rows].
struct LossRows {
  const void* logits;
  const int64_t* targets;
  Element element;
  int64_t rows, vocab;
  double z_loss, label_smoothing;
};
// What a sum over rows is divided by.
enum class Divisor : uint8_t { kOne, kValidTargets };

// losses [rows] and log-sum-exps [rows]; both 0 for ignored rows, NaN for targets outside the vocabulary.
cudaError_t launch_row_losses(const LossRows& rows, double* losses, float* normalisers, cudaStream_t stream);
// grad [rows, vocab], of the logits' element, times scale[0]; it may be the logits.
cudaError_t launch_row_gradients(const LossRows& rows, const float* normalisers, const float* scale, void* grad,
                                 cudaStream_t stream);
// Both at once, reading the logits once more from the cache; grad may be the logits.
cudaError_t launch_row_losses_and_gradients(const LossRows& rows, const float* scale, double* losses, void* grad,
                                            cudaStream_t stream);
// loss[0] = sum of losses [rows] / divisor.
cudaError_t launch_loss_sum(const double* losses, const int64_t* targets, int64_t rows, Divisor divisor, float* loss,
                            cudaStream_t stream);
// scale[0] = grad[0] / divisor; grad null: 1 / divisor.
cudaError_t launch_loss_scale(const float* grad, const int64_t* targets, int64_t rows, Divisor divisor, float* scale,
                              cudaStream_t stream);

// values [n] *= factor[0]; reads and writes nothing where that is 1.
cudaError_t launch_scale(void* values, Element element, int64_t n, const float* factor, cudaStream_t stream);
// target [n] = or += values [n] * scale * factor[0].
struct ScaledCopy {
  const void* values;
  Element element;
  float* target;
  int64_t n;
  float scale;
  const float* factor;
  Fill fill;
};
cudaError_t launch_scaled_copy(const ScaledCopy& arrays, cudaStream_t stream);

}  // namespace fsdp::kernels::cuda
