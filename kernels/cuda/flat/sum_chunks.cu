#include "kernels/cuda/flat/flat.cuh"
#include "kernels/cuda/flat/flat_launch.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kDigits = 9;
static_assert(1 << (kDigits - 1) >= kMostChunks, "digits of a number of chunks");

__device__ inline float4 add(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }

// As the tree of kernels/raw/flat/sum_chunks.h, by a binary counter: its digit k, where it is set, has a sum of 2^k
// neighbours.
template <class Value, class Load>
__device__ inline Value tree_sum(int num_chunks, const Load& load) {
  Value digits[kDigits];
  for (int k = 0; k < num_chunks; ++k) {
    Value sum = load(k);
    int digit = 0;
    for (; k >> digit & 1; ++digit) sum = add(digits[digit], sum);
    digits[digit] = sum;
  }
  int digit = __ffs(num_chunks) - 1;
  Value sum = digits[digit];
  for (++digit; num_chunks >> digit != 0; ++digit) {
    if (num_chunks >> digit & 1) sum = add(digits[digit], sum);
  }
  return sum;
}

// In fp32, rounded once to the output's type.
template <class Out, class In, Placing kPlacing>
struct SumBody {
  Out* output;
  const In* chunks[kMostChunks];
  int num_chunks;

  __device__ void four(int64_t i) const {
    float4 sum = tree_sum<float4>(num_chunks, [&](int k) { return load4(chunks[k] + i); });
    if constexpr (kPlacing == Placing::kAdd) sum = add(load4(output + i), sum);
    store4(output + i, sum);
  }

  __device__ void one(int64_t i) const {
    float sum = tree_sum<float>(num_chunks, [&](int k) { return to_float(chunks[k][i]); });
    if constexpr (kPlacing == Placing::kAdd) sum = __fadd_rn(to_float(output[i]), sum);
    output[i] = from_float<Out>(sum);
  }
};

template <class Out, class In, Placing kPlacing>
cudaError_t launch(const ChunkArrays& arrays, cudaStream_t stream) {
  SumBody<Out, In, kPlacing> body;
  body.output = static_cast<Out*>(arrays.output);
  body.num_chunks = arrays.num_chunks;
  // Fours only if all chunks reach their borders at the same element as the output.
  Start other(body.output);
  for (int k = 0; k < arrays.num_chunks; ++k) {
    body.chunks[k] = static_cast<const In*>(arrays.chunks[k]);
    const Start start(body.chunks[k]);
    if (k == 0 || start.elements_to_border() != Start(body.output).elements_to_border()) other = start;
  }
  return launch_flat(body, arrays.n, {body.output, other}, stream);
}

}  // namespace

cudaError_t launch_sum_chunks(const ChunkArrays& arrays, Placing placing, cudaStream_t stream) {
  return with_type(arrays.output_dtype, [&](auto out) {
    return with_type(arrays.chunk_dtype, [&](auto in) {
      using Out = decltype(out);
      using In = decltype(in);
      if (placing == Placing::kAdd) return launch<Out, In, Placing::kAdd>(arrays, stream);
      return launch<Out, In, Placing::kWrite>(arrays, stream);
    });
  });
}

}  // namespace fsdp::kernels::cuda
