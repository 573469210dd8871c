#pragma once

#include "text/chat/format.h"
#include "text/chat/transcript.h"

namespace fsdp::chat {

// The ids that tokenizing the transcript's text in one go gives, except that nothing in it is taken for a special token
// but what the transcript says is one; and which of them the model has to write. A token on the border between the two
// authors counts as the model's.
Rendered encode(const Transcript& transcript);

}  // namespace fsdp::chat
