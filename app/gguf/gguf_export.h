#pragma once

#include <filesystem>
#include <string>

#include "io/gguf/ggml_type.h"
#include "io/weights/weights_copy.h"

namespace fsdp::app {

// "fp32", "fp16", "bf16" or "q8_0"; "keep": bf16 where all floating-point tensors of the plan have it, fp16 likewise,
// else fp32. Throws Error(kUsage) for anything else.
io::GgmlType parse_gguf_type(const std::string& text, const io::CopyPlan& plan);

// Writes one GGUF file at `output.path`. Matrices are stored as `type`, norms and biases always as fp32, rows that are
// no whole blocks of it as F16. Rows pass through one by one. Returns what a user should hear besides: why the file has
// no vocabulary, or "". Throws Error(kUsage) naming what llama.cpp cannot hold.
std::string write_gguf(const io::WeightSource& source, const io::CopyPlan& plan, const io::OutputFolder& output,
                       const nlohmann::json& config, io::GgmlType type);

}  // namespace fsdp::app
