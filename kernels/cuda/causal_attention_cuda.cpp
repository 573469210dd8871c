// [Note: attention on CUDA] fsdp::causal_attention is made of ATen's operators, whose own gradients autograd records;
// there is nothing of ours beneath. Whole rows go to cuDNN on Hopper and later, where it is fastest, else to what ATen
// prefers (flash attention); documents and windows to flash attention, which takes both, in bf16. Neither repeats key
// heads. What those do not take (fp32, odd head dims, heads of more than 256) goes document by document to ATen, in
// memory of T * T numbers per head where that has no better kernel: right, and for tests and small models.
//   The backward of either library adds in an order of its own unless at::globalContext().deterministicAlgorithms() is
// on; then cuDNN is not used.
#include <ATen/ATen.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kHopper = 9;
constexpr int64_t kMostFlashDim = 256;

int major_version(c10::Device device) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major;
}

bool takes_flash(const at::Tensor& q) {
  const bool is_half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return is_half && q.size(3) % 8 == 0 && q.size(3) <= kMostFlashDim && at::globalContext().userEnabledFlashSDP() &&
         sdp::is_flash_attention_available() && major_version(q.device()) >= 8;
}

bool records_graph(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
}

// Whole rows, without a window.
at::Tensor attend_rows(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD) {
  const at::Tensor q = q_BTHD.transpose(1, 2), k = k_BTKD.transpose(1, 2), v = v_BTKD.transpose(1, 2);
  const bool has_groups = q.size(1) != k.size(1);
  const sdp::sdp_params params{q, k, v, std::nullopt, /*dropout=*/0.0, /*is_causal=*/true, has_groups};
  at::Tensor y;
  if (major_version(q.device()) >= kHopper && sdp::can_use_cudnn_attention(params, /*debug=*/false)) {
    y = std::get<0>(at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                                            /*compute_log_sumexp=*/records_graph(q, k, v),
                                                            /*dropout_p=*/0.0, /*is_causal=*/true));
  } else {
    y = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0, /*is_causal=*/true,
                                         /*scale=*/std::nullopt, has_groups);
  }
  return y.transpose(1, 2);
}

// Where documents start and the last one ends, on the device; kept for the layers that follow, each of which asks for
// the same. From pinned memory, so that nobody waits.
at::Tensor document_starts(at::IntArrayRef lengths, const at::Tensor& q) {
  struct Latest {
    std::vector<int64_t> lengths;
    c10::cuda::CUDAStream stream;
    at::Tensor starts;
  };
  static thread_local std::optional<Latest> latest;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  if (latest && latest->stream == stream && lengths == at::IntArrayRef(latest->lengths)) return latest->starts;
  const at::Tensor host =
      at::empty({static_cast<int64_t>(lengths.size()) + 1}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
  auto* start = host.mutable_data_ptr<int32_t>();
  *start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) start[i + 1] = start[i] + static_cast<int32_t>(lengths[i]);
  latest = Latest{lengths.vec(), stream, host.to(q.device(), /*non_blocking=*/true)};
  return latest->starts;
}

// Documents, rows of one length among them, with or without a window, through flash attention.
at::Tensor attend_documents(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                            at::IntArrayRef lengths, int64_t window) {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor starts = document_starts(lengths, q_BTHD);
  const std::optional<int64_t> left = window > 0 ? std::optional(window - 1) : std::nullopt;
  const std::optional<int64_t> right = window > 0 ? std::optional<int64_t>(0) : std::nullopt;
  const at::Tensor y = std::get<0>(at::_flash_attention_forward(
      q_BTHD.flatten(0, 1), k_BTKD.flatten(0, 1), v_BTKD.flatten(0, 1), starts, starts, longest, longest,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, /*scale=*/std::nullopt, left, right));
  return y.view(q_BTHD.sizes());
}

// One document [1, T, heads, D] with a window: a mask of T * T.
at::Tensor attend_in_window(const at::Tensor& q_1THD, const at::Tensor& k_1TKD, const at::Tensor& v_1TKD,
                            int64_t window) {
  const int64_t length = q_1THD.size(1);
  const at::Tensor sees =
      at::ones({length, length}, q_1THD.options().dtype(at::kBool).requires_grad(false)).tril().triu(1 - window);
  return at::scaled_dot_product_attention(q_1THD.transpose(1, 2), k_1TKD.transpose(1, 2), v_1TKD.transpose(1, 2), sees,
                                          /*dropout_p=*/0.0, /*is_causal=*/false, /*scale=*/std::nullopt,
                                          q_1THD.size(2) != k_1TKD.size(2))
      .transpose(1, 2);
}

// One document after the other, through whatever ATen has for it.
at::Tensor attend_one_by_one(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                             at::IntArrayRef lengths, int64_t window) {
  const at::Tensor q = q_BTHD.flatten(0, 1).unsqueeze(0), k = k_BTKD.flatten(0, 1).unsqueeze(0),
                   v = v_BTKD.flatten(0, 1).unsqueeze(0);
  std::vector<at::Tensor> results;
  int64_t first = 0;
  for (const int64_t count : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, first, count); };
    const bool sees_all = window == 0 || window >= count;
    results.push_back(sees_all ? attend_rows(part(q), part(k), part(v))
                               : attend_in_window(part(q), part(k), part(v), window));
    first += count;
  }
  return at::cat(results, 1).view(q_BTHD.sizes());
}

at::Tensor causal_attention_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef lengths,
                                 int64_t window) {
  check_causal_attention(q, k, v);
  check_documents(q, lengths, window);
  check_devices("causal_attention", {q, k, v});
  const OnDeviceOf device(q);
  if (q.numel() == 0) return q.clone();
  const int64_t rows = q.size(0), length = q.size(1);
  if (lengths.empty() && (window == 0 || window >= length)) return attend_rows(q, k, v);
  TORCH_CHECK(rows * length <= std::numeric_limits<int32_t>::max(), "[causal_attention] got ", rows * length,
              " tokens in documents, expected at most ", std::numeric_limits<int32_t>::max());
  std::vector<int64_t> documents = lengths.vec();
  if (documents.empty()) documents.assign(static_cast<size_t>(rows), length);
  const auto attend = takes_flash(q) ? attend_documents : attend_one_by_one;
  return attend(q, k, v, documents, window);
}

}  // namespace

// Below autograd for c10::InferenceMode; else autograd sees through it.
TORCH_LIBRARY_IMPL(fsdp, CUDA, library) { library.impl("causal_attention", causal_attention_cuda); }
TORCH_LIBRARY_IMPL(fsdp, AutogradCUDA, library) { library.impl("causal_attention", causal_attention_cuda); }

}  // namespace fsdp::kernels::cuda
