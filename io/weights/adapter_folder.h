#pragma once

#include "io/weights/adapter.h"
#include "io/weights/weights_copy.h"

namespace fsdp::io {

// Writes a folder of peft: adapter_model.safetensors, fp32, and adapter_config.json. It appears complete or not at all.
// Throws Error(kUsage) for magnitudes that are told from a base (Magnitude::kOffsets), which peft does not know.
void write_adapter_folder(const Adapter& adapter, const OutputFolder& output);

}  // namespace fsdp::io
