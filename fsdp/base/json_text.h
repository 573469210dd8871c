#pragma once

#include <string>

namespace fsdp {

// `text` as a JSON string, quotes included; control characters become blanks.
std::string json_text(const std::string& text);

}  // namespace fsdp
