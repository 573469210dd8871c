#pragma once

#include <functional>
#include <string>

namespace fsdp {

// Something that works but costs more than it must, or that somebody should look at. Given once for each subject in a
// world, but for "strangers": connections that the store of the job refused, once a minute at most.
struct Advice {
  std::string subject;  // what it is about: "padding", "one large unit", "job secret", ...
  std::string text;     // what was measured, and what to do about it
};

// Who hears advice: by default LibTorch's warning handler, which prints to stderr. An empty function silences it.
// Process-wide, thread-safe; the handler is called on the thread that found it.
using AdviceHandler = std::function<void(const Advice& advice)>;
void set_advice_handler(AdviceHandler handler);
void give_advice(const Advice& advice);

}  // namespace fsdp
