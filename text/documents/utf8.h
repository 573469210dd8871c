#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::io {

// The offset of the first byte that does not continue valid UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing
// above U+10FFFF), or text.size(). Several GB/s.
size_t valid_utf8_prefix(std::string_view text);

}  // namespace fsdp::io
