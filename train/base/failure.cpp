#include "train/base/failure.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>

#include "fsdp/base/error.h"
#include "fsdp/base/lack_of_memory.h"
#include "io/base/error.h"
#include "train/base/agreement.h"

namespace fsdp::train {
namespace {

ErrorCode code_of(io::ErrorKind kind) {
  switch (kind) {
    case io::ErrorKind::kUsage:
      return ErrorCode::kUsage;
    case io::ErrorKind::kData:
      return ErrorCode::kData;
    case io::ErrorKind::kModel:
      return ErrorCode::kCheckpoint;
    case io::ErrorKind::kFileSystem:
      return ErrorCode::kFileSystem;
  }
  return ErrorCode::kInternal;
}

Failure failure(ErrorCode code, const std::string& message) { return {static_cast<int>(code), message, false}; }

Failure torch_failure(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const std::string first_line = text.substr(0, text.find('\n'));
  return fsdp::is_lack_of_memory(error)
             ? failure(ErrorCode::kMemory, first_line + ". Use a smaller microbatch, or more ranks.")
             : failure(ErrorCode::kInternal, first_line);
}

// Of a library, or of the system.
Failure foreign_failure(const std::exception& error) {
  if (!is_lack_of_memory(error)) return failure(ErrorCode::kInternal, error.what());
  return failure(ErrorCode::kMemory, std::string("out of memory, or of threads: ") + error.what() +
                                         ". Use a smaller microbatch, or more ranks, or raise the limits of this user "
                                         "(ulimit -v, ulimit -u).");
}

}  // namespace

Failure describe_failure(const std::exception_ptr& exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const AgreedError& error) {
    return {static_cast<int>(error.code()), error.what(), error.told_elsewhere()};
  } catch (const Error& error) {
    return failure(error.code(), error.what());
  } catch (const io::Error& error) {
    return failure(code_of(error.kind()), error.what());
  } catch (const c10::Error& error) {
    return torch_failure(error);
  } catch (const std::filesystem::filesystem_error& error) {
    return failure(ErrorCode::kFileSystem, error.what());
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kMemory, "out of memory. Use a smaller microbatch, or more ranks.");
  } catch (const std::invalid_argument& error) {  // of the folders that know neither torch nor our errors
    return failure(ErrorCode::kUsage, error.what());
  } catch (const std::exception& error) {
    return foreign_failure(error);
  } catch (...) {
    return failure(ErrorCode::kInternal, "unknown exception");
  }
}

}  // namespace fsdp::train
