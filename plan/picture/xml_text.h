#pragma once

#include <string>
#include <string_view>

namespace fsdp::plan {

// `text` as it may stand between the tags of XML, or within its quotes. Control characters, which XML has no place for,
// become spaces.
std::string xml_text(std::string_view text);

}  // namespace fsdp::plan
