#include "fsdp/precision/precision.h"

#include "fsdp/base/check.h"

namespace fsdp {

Precision parse_precision(const std::string& name) {
  if (name == "fp32") return Precision::fp32();
  if (name == "bf16") return Precision::bf16();
  if (name == "fp16") return Precision::fp16();
  FSDP_THROW(kUsage, "[precision] got '", name, "', expected fp32, bf16 or fp16.");
}

}  // namespace fsdp
