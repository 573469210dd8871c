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

// What DoRA (Liu et al. 2024) makes the norms of the rows of W + scale B A, W being what it was trained on.
enum class Magnitude {
  kNone,     // LoRA: they are as they come
  kNorms,    // these numbers: "lora_magnitude_vector", as peft stores them
  kOffsets,  // the norms of W's rows and these numbers more: "lora_magnitude_offset", as checkpoints have them
};

// The two factors of what is added to one weight [out, in]: fp32, row-major.
struct LowRank {
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank]
  Magnitude magnitude = Magnitude::kNone;
  std::vector<float> norms = {};  // [out], or none
};

// A LoRA adapter in memory.
struct Adapter {
  AdapterConfig config;
  std::map<std::string, LowRank> modules;  // by the module's name, "model.layers.0.self_attn.q_proj"
};

// What an adapter is to be worked into.
enum class AdapterBase {
  kGiven,  // a model that someone names
  kOwn,    // the weights that the source has beside it
};

// Reads the adapter that a source holds: a folder of peft, or a checkpoint of a LoRA run. Throws Error(kUsage) if it is
// none, Error(kModel) if a factor lacks its twin or, with DoRA, its magnitudes, shapes do not fit, or a tensor belongs
// to no factor.
// Error(kModel), too, if the adapter holds a part of its base (PiSSA) and is to be for another than its own.
Adapter read_adapter(const WeightSource& source, AdapterBase base = AdapterBase::kGiven);

// (rows of W)[first, first + count) += scale B A, for `weights` that are elements [first, first + count) of the
// flattened weight, fp32. The sum over the rank is taken first.
void add_low_rank(const LowRank& factors, double scale, int64_t first, int64_t count, float* weights);

// Rows [first_row, first_row + num_rows) of W, whole and fp32, become those that the adapter makes of them, magnitudes
// included. A row of zeros stays as it is.
void work_in(const LowRank& factors, double scale, int64_t first_row, int64_t num_rows, float* weights);

// For rows that no one has whole. Of elements [first, first + count) of a weight with rows of `in`: their squares,
// added to those of their rows [out]; and each row times its factor.
void add_row_squares(int64_t in, int64_t first, int64_t count, const float* weights, double* squares);
void scale_rows(int64_t in, int64_t first, int64_t count, const double* row_factors, float* weights);
// What a row whose elements have these squares, in W and in W + scale B A, is to be multiplied with.
double magnitude_factor(const LowRank& factors, int64_t row, double base_squares, double sum_squares);

}  // namespace fsdp::io
