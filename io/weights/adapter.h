#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/weight_source.h"
#include "io/hub/adapter_config.h"

namespace fsdp::io {

// Whether a parameter of that name belongs to an adapter.
bool is_adapter_name(std::string_view parameter);

// The two factors of what is added to one weight [out, in]: fp32, row-major.
struct LowRank {
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank]
};

// A LoRA adapter in memory.
struct Adapter {
  AdapterConfig config;
  std::map<std::string, LowRank> modules;  // by the module's name, "model.layers.0.self_attn.q_proj"
};

// Reads the adapter that a source holds: a folder of peft, or a checkpoint of a LoRA run. Throws Error(kUsage) if it is
// none, Error(kModel) if a factor lacks its twin, shapes do not fit, or a tensor belongs to no factor.
Adapter read_adapter(const WeightSource& source);

// (rows of W)[first, first + count) += scale B A, for `weights` that are elements [first, first + count) of the
// flattened weight, fp32. The sum over the rank is taken first.
void add_low_rank(const LowRank& factors, double scale, int64_t first, int64_t count, float* weights);

}  // namespace fsdp::io
