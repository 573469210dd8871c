#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::testing {

// A model of the parity tests: plain torch::nn, never told that it will be sharded.
struct ParityModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::shared_ptr<torch::nn::Module>> units;          // inner modules to shard, besides the root
  std::function<torch::Tensor(const torch::Tensor& input)> loss;  // input [rows, features]
};

struct ParityCase {
  std::string name;
  std::function<ParityModel()> make;
  int64_t features;
};

// Every model shape that the parity tests run.
const std::vector<ParityCase>& parity_cases();
const ParityCase& parity_case(const std::string& name);

}  // namespace fsdp::testing
