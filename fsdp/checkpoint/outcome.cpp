#include "fsdp/checkpoint/outcome.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <vector>

#include "fsdp/base/error.h"
#include "fsdp/comm/collectives.h"
#include "io/base/error.h"

namespace fsdp {
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

// An error as it travels: its code, a space, its text.
std::string packed(ErrorCode code, const std::string& text) {
  return std::to_string(static_cast<int>(code)) + ' ' + text;
}

Error unpacked(const std::string& error, const std::string& where) {
  const size_t space = error.find(' ');
  return {static_cast<ErrorCode>(std::stoi(error.substr(0, space))), error.substr(space + 1) + where};
}

// What `action` throws, packed; "" if it throws nothing.
std::string failure_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommunication) throw;
    return packed(error.code(), error.what());
  } catch (const io::Error& error) {
    return packed(code_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return packed(ErrorCode::kMemory, "[checkpoint] out of memory. Make units smaller, or use more ranks.");
  } catch (const std::exception& error) {
    return packed(ErrorCode::kInternal, one_line(error));
  }
}

}  // namespace

void run_on_every_rank(const World& world, const std::function<void()>& action) {
  const std::vector<std::string> failures = gather_strings(world, failure_of(action));
  const auto failed = [](const std::string& failure) { return !failure.empty(); };
  const auto first = std::find_if(failures.begin(), failures.end(), failed);
  if (first == failures.end()) return;
  const bool everywhere = std::all_of(failures.begin(), failures.end(), failed);
  throw unpacked(*first, everywhere ? "" : " (On rank " + std::to_string(first - failures.begin()) + ".)");
}

std::string one_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace fsdp
