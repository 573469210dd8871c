#include "kernels/products/fp8_recipe.h"

#include <array>
#include <utility>

namespace fsdp::kernels {
namespace {

constexpr std::array<std::pair<Fp8Recipe, const char*>, 5> kNames = {{{Fp8Recipe::kTensorwise, "tensorwise"},
                                                                      {Fp8Recipe::kRowwise, "rowwise"},
                                                                      {Fp8Recipe::kBlockwise, "blockwise"},
                                                                      {Fp8Recipe::kMx, "mxfp8"},
                                                                      {Fp8Recipe::kDelayed, "delayed"}}};

}  // namespace

const char* name(Fp8Recipe recipe) {
  for (const auto& [each, text] : kNames)
    if (each == recipe) return text;
  return "?";
}

std::optional<Fp8Recipe> find_fp8_recipe(const std::string& name) {
  for (const auto& [recipe, text] : kNames)
    if (name == text) return recipe;
  return std::nullopt;
}

bool has_one_weight(Fp8Recipe recipe) { return recipe != Fp8Recipe::kRowwise && recipe != Fp8Recipe::kMx; }

int64_t weight_block(Fp8Recipe recipe) { return recipe == Fp8Recipe::kBlockwise ? 128 : 0; }

int64_t weight_granule(Fp8Recipe recipe) {
  if (recipe == Fp8Recipe::kBlockwise) return 128;
  return recipe == Fp8Recipe::kMx ? 32 : 16;  // 16: what tensor cores take
}

}  // namespace fsdp::kernels
