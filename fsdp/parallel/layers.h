#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/mesh/mesh.h"
#include "fsdp/parallel/ranks.h"
#include "fsdp/parallel/tokens.h"

namespace fsdp::parallel {

// A layer's place along the axis, and its name in errors.
struct LayerPlace {
  std::shared_ptr<Ranks> ranks;
  std::string layer;
  Tokens tokens = Tokens::kAll;
};

// Which dimension of a linear map is cut.
enum class LinearCut { kNone, kColumn, kRow };

struct LinearOptions {
  bool bias = true;
  Tokens tokens = Tokens::kAll;
  std::string name = "linear";
};

// y = x W^T + b. x [..., in]; W [out/N, in] and b [out/N] are this rank's rows of it; y [..., out/N]. The constructor
// draws what torch::nn::Linear(in, out) draws and keeps the part. Forward and backward are COLLECTIVE over "tp".
// Throws Error(kUsage) where N does not divide `out`.
class ColumnLinearImpl : public torch::nn::Module {
 public:
  ColumnLinearImpl(int64_t in, int64_t out, const Mesh& mesh, const LinearOptions& options = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;  // undefined where there is none

 private:
  LayerPlace place_;
};
TORCH_MODULE(ColumnLinear);

// Likewise with columns: x [..., in/N], W [out, in/N], b [out] whole, y [..., out], the sum over the ranks.
class RowLinearImpl : public torch::nn::Module {
 public:
  RowLinearImpl(int64_t in, int64_t out, const Mesh& mesh, const LinearOptions& options = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;

 private:
  LayerPlace place_;
};
TORCH_MODULE(RowLinear);

// torch::nn::Linear, drawn alike, until parallelize() cuts it: then it computes what ColumnLinear or RowLinear does. A
// type of its own because forward() of LibTorch's cannot be changed from outside.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out) : LinearImpl(torch::nn::LinearOptions(in, out)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);
  at::Tensor forward(const at::Tensor& x);
  // Keeps this rank's part. Once; sizes must divide. Local.
  void cut(LinearCut cut, const LayerPlace& place);

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out]; undefined where there is none

 private:
  LinearCut cut_ = LinearCut::kNone;
  LayerPlace place_;
};
TORCH_MODULE(Linear);

struct EmbeddingOptions {
  Tokens tokens = Tokens::kAll;  // of the result
  std::string name = "embedding";
};

// torch::nn::Embedding whose rows are cut: weight [rows/N, width]; ids [...] -> [..., width].
class VocabEmbeddingImpl : public torch::nn::Module {
 public:
  VocabEmbeddingImpl(int64_t rows, int64_t width, const Mesh& mesh, const EmbeddingOptions& options = {});
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;

 private:
  LayerPlace place_;
};
TORCH_MODULE(VocabEmbedding);

// What the layers compute. `bias` may be undefined.
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const LayerPlace& place);
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LayerPlace& place);

// Keeps this rank's part of `parameter` along `dim`, in the parameter itself, and notes for fully_shard(), the gradient
// norm and checkpoints how it was cut. Local. `name`: of it, for errors.
void cut_parameter(const at::Tensor& parameter, int64_t dim, const Ranks& ranks, const std::string& name);

}  // namespace fsdp::parallel
