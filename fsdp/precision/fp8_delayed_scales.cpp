#include "fsdp/precision/fp8_delayed_scales.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/comm/collectives.h"
#include "kernels/products/fp8_history.h"
#include "kernels/products/fp8_weights.h"

namespace fsdp {
namespace {

using kernels::Fp8History;

// Two hexadecimal digits a code.
void write_code(uint8_t code, std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  text += kDigits[code >> 4];
  text += kDigits[code & 15];
}

uint8_t read_code(const std::string& text, size_t index) {
  return static_cast<uint8_t>(std::stoi(text.substr(2 * index, 2), nullptr, 16));
}

}  // namespace

Fp8DelayedScales::Fp8DelayedScales(const torch::nn::Module& module, World world) : world_(std::move(world)) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (kernels::fp8_recipe_of(parameter) == kernels::Fp8Recipe::kDelayed)
      histories_.push_back(kernels::fp8_history_of(parameter));
  }
}

Fp8DelayedScales::Fp8DelayedScales(const torch::nn::Module& module, World world, const std::vector<std::string>& names)
    : world_(std::move(world)) {
  std::map<std::string, std::shared_ptr<Fp8History>> own;
  std::string text;
  for (const auto& item : module.named_parameters()) {
    if (kernels::fp8_recipe_of(item.value()) != kernels::Fp8Recipe::kDelayed) continue;
    own[item.key()] = kernels::fp8_history_of(item.value());
    text += item.key() + "\n";
  }
  std::set<std::string> of_all;
  for (const std::string& theirs : gather_strings(world_, text)) {
    std::istringstream lines(theirs);
    for (std::string name; std::getline(lines, name);) of_all.insert(name);
  }
  for (const std::string& name : names) {
    if (of_all.count(name) == 0) continue;
    const auto here = own.find(name);
    histories_.push_back(here == own.end() ? std::make_shared<Fp8History>() : here->second);
  }
}

void Fp8DelayedScales::begin_step() {
  for (const auto& history : histories_) history->forget_seen();
}

void Fp8DelayedScales::update() {
  if (empty()) return;
  std::string mine;
  for (const auto& history : histories_) {
    for (const uint8_t code : history->seen()) write_code(code, mine);
  }
  const std::vector<std::string> all = gather_strings(world_, mine);
  for (size_t i = 0; i < histories_.size(); ++i) {
    Fp8History::Codes codes{};
    for (const std::string& of_rank : all) {
      for (size_t k = 0; k < codes.size(); ++k) codes[k] = std::max(codes[k], read_code(of_rank, 2 * i + k));
    }
    histories_[i]->push(codes);
  }
}

std::string Fp8DelayedScales::text() const {
  std::string text;
  for (const auto& history : histories_) {
    for (const Fp8History::Codes& codes : history->steps()) {
      for (const uint8_t code : codes) write_code(code, text);
    }
  }
  return text;
}

void Fp8DelayedScales::load(const std::string& text) {
  if (empty()) return;
  constexpr size_t kCodes = 2 * Fp8History::kSteps;  // of a layer
  const size_t expected = 2 * kCodes * histories_.size();
  if (!text.empty() && (text.size() != expected || text.find_first_not_of("0123456789abcdef") != std::string::npos))
    FSDP_THROW(kCheckpoint, "[fp8] delayed scales: got ", text.size(), " digits, expected ", expected, " of ",
               histories_.size(), " layers. Choose the layers that were saved.");
  for (size_t i = 0; i < histories_.size(); ++i) {
    std::array<Fp8History::Codes, Fp8History::kSteps> steps{};
    for (size_t k = 0; !text.empty() && k < kCodes; ++k) steps[k / 2][k % 2] = read_code(text, i * kCodes + k);
    histories_[i]->restore(steps);
    histories_[i]->forget_seen();
  }
}

}  // namespace fsdp
