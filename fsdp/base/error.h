#pragma once

#include <stdexcept>
#include <string>

namespace fsdp {

// Why something failed. The value is the exit code of the `fsdp` binary (docs/errors.md).
enum class ErrorCode {
  kInternal = 1,
  kUsage = 2,
  kData = 3,
  kCheckpoint = 4,
  kCommunication = 5,
  kNonFinite = 6,
  kFileSystem = 7,
  kMemory = 8,
};

// The only exception type the library throws. Its text reads `[operation] what: got X, expected Y. Fix.`
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace fsdp
