#include "benchmarks/support/peer_inputs.h"

#include <torch/torch.h>

#include <map>
#include <string>

namespace fsdp::benchmarks {

void fill_weights(models::Decoder& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model->named_parameters()) parameters[item.key()] = item.value();
  uint64_t seed = 0;
  for (auto& [name, parameter] : parameters) {
    torch::manual_seed(seed++);
    parameter.dim() == 1 ? parameter.fill_(1) : parameter.normal_(0, 0.02);
  }
}

at::Tensor make_tokens(int64_t count, int rank, int64_t vocabulary) {
  at::Tensor ids = torch::empty({count + 1}, at::kLong);
  uint64_t state = static_cast<uint64_t>(rank) + 1;
  for (int64_t i = 0; i <= count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    ids.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(vocabulary));
  }
  return ids;
}

}  // namespace fsdp::benchmarks
