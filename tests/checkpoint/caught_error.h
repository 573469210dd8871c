#pragma once

#include <optional>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::testing {

// Code and text of the Error that `function` throws; no code if it throws none.
struct CaughtError {
  std::optional<ErrorCode> code;
  std::string text = "no error";
};

template <class Function>
CaughtError caught_from(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

}  // namespace fsdp::testing
