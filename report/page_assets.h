#pragma once

namespace fsdp::report {

// The page's style sheet: light or dark as the reader has it, one column on a phone.
extern const char* const kPageStyle;
// Shows values below the pointer. The page says everything without it.
extern const char* const kPageScript;

}  // namespace fsdp::report
