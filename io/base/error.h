#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp::io {

// Whose fault it was; mapped to exit codes at the edge (docs/errors.md).
enum class ErrorKind {
  kUsage,       // the caller asked for something impossible
  kData,        // a training data file or a JSON file is wrong
  kModel,       // a model file is wrong
  kFileSystem,  // the operating system refused: missing rights, full disk, broken device
};

// The only exception type of this folder. One line: `[op] what: got X, expected Y. Fix.`, naming the file and, where
// known, the offset. LibTorch-free, so that the parsers can be fuzzed alone; callers map it to their own error.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// `text` in single quotes with control and non-ASCII bytes escaped as \xNN, cut at 200 characters: makes names that
// come from an untrusted file safe to put into a one-line message.
std::string in_quotes(std::string_view text);

// Error(kFileSystem) for a failed system call on `path`; `error_number` is the errno it left. `expected` says what
// should have happened, as in "expected 4096 bytes to be written".
Error system_error(std::string_view op, const std::filesystem::path& path, int error_number, std::string_view expected);

// True for a name that stays inside the folder it is looked up in: not empty, no '/', '\\' or NUL, not "." or "..",
// at most 255 bytes.
bool is_plain_file_name(std::string_view name);

}  // namespace fsdp::io
