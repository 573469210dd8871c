#pragma once

#include <torch/script.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/unit/options.h"

namespace fsdp::testing {

// A module of one of the kinds that fsdp takes.
using AnyModule = std::variant<std::shared_ptr<torch::nn::Module>, torch::jit::Module>;

// A root, which has an optimizer of its own, and the modules inside it that become units, inner ones first.
struct ZooRoot {
  AnyModule module;
  std::vector<AnyModule> units;
};

// A model and how it is trained. The sharded and the unsharded run use the same one, built twice.
struct ZooModel {
  std::vector<ZooRoot> roots;
  std::function<torch::Tensor(const torch::Tensor& rows)> predict;
  // A step has one turn for each root: forward, backward, and the step of that root's optimizer. The mean over rows.
  std::function<torch::Tensor(const torch::Tensor& rows, int turn)> loss;
  std::function<void(int step, int turn)> before_turn;  // freezes and unfreezes; may be empty
};

// What a turn gathers once the order of the units is known, M(2U - k) in docs/engine.md: U groups of parameters, of
// which k are still unsharded when the backward starts, or are not read by it.
struct TurnGathers {
  int64_t units = 0;
  int64_t kept = 0;
  int64_t by_inner_backward = 0;  // the loss has a backward of its own, and then everything is gathered once more
  int64_t wrong_guesses = 0;      // at most: backwards that begin alike and go on differently share one recorded order
};

struct ZooCase {
  std::string name;
  std::function<ZooModel()> make;
  std::vector<TurnGathers> turns;
  std::string why_kept;
  // Inner units in memory at once, at most: the one that runs and the next, unless an operator or a loop needs more.
  int64_t units_at_once = 2;

  int64_t features = 24;  // of a row
  torch::ScalarType dtype = torch::kFloat;
  UnusedUnit unused = UnusedUnit::kSkip;  // of the inner units
  // Every rank computes all rows instead of its share: the model's output for a row depends on the others.
  bool same_rows = false;
  bool inference_mode = true;  // LibTorch refuses it to TorchScript that has been trained
  std::function<torch::Tensor(const torch::Tensor& noise)> make_rows{};  // empty: normal numbers are the rows
  std::function<torch::Tensor(const torch::Tensor& rows)> break_rows{};  // the forward throws in its middle
  std::vector<int> more_worlds{};                                        // besides 1 and 2
};

// All models, in the order of docs/any_model.md.
const std::vector<ZooCase>& zoo();
const ZooCase& zoo_case(const std::string& name);

// The parts of zoo(): torch::nn modules of one kind each, modules that read weights in unusual ways, TorchScript.
std::vector<ZooCase> layer_cases();
std::vector<ZooCase> unusual_cases();
std::vector<ZooCase> script_cases();

// Rows that are no numbers; models notice with refuse_nan(), in the middle of a forward.
torch::Tensor nan_rows(const torch::Tensor& rows);
void refuse_nan(const torch::Tensor& rows);

}  // namespace fsdp::testing
