#pragma once

#include <string>

#include "io/hub/model_folder.h"

namespace fsdp::io {

// 16 hexadecimal digits that models with other tensors, or other values in them, do not have: over names, shapes, types
// and, of each tensor, up to 4096 elements that are spread over it. What is fine-tuned differs nearly everywhere, so
// this tells it apart without reading it all. The same for any division into files.
std::string identify_model(const ModelFolder& folder);

}  // namespace fsdp::io
