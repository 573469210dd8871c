// How often an operator runs.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace fsdp::kernels {

// Counts calls of the operator `name` on this thread while it lives; one at a time.
class CallsOf {
 public:
  explicit CallsOf(const char* name) {
    wanted_ = name;
    count_ = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallsOf() { at::removeCallback(handle_); }
  CallsOf(const CallsOf&) = delete;
  CallsOf& operator=(const CallsOf&) = delete;

  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
    if (call.name() == wanted_) ++count_;
    return nullptr;
  }

  static inline thread_local std::string wanted_;
  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace fsdp::kernels
