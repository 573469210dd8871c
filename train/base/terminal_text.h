#pragma once

#include <string>
#include <string_view>

namespace fsdp::train {

// `text` with nothing in it that tells a terminal what to do: control characters but the line feed and the tab, those
// that UTF-8 writes as two bytes (U+0080 to U+009F), and bytes that are no UTF-8 become \x1b and the like. Names in the
// files of others, and what a model writes, may hold any bytes.
std::string for_terminal(std::string_view text);

}  // namespace fsdp::train
