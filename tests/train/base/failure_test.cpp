// What a program ends with, and says, for exceptions that are not ours.
#include "train/base/failure.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "fsdp/base/error.h"
#include "train/base/leave.h"

namespace fsdp::train {
namespace {

template <class Exception>
Failure failure_of(const Exception& exception) {
  return describe_failure(std::make_exception_ptr(exception));
}

int code_for(ErrorCode code) { return static_cast<int>(code); }

TEST(Failures, LackOfMemoryComesInManyForms) {
  const std::error_code no_thread = std::make_error_code(std::errc::resource_unavailable_try_again);
  const c10::Error torch({"here", "there", 1},
                         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes");
  for (const Failure& failure :
       {failure_of(std::bad_alloc()), failure_of(std::system_error(no_thread)), failure_of(torch)}) {
    EXPECT_EQ(failure.exit_code, code_for(ErrorCode::kMemory)) << failure.message;
    EXPECT_NE(failure.message.find("Use a smaller microbatch, or more ranks"), std::string::npos) << failure.message;
  }
}

TEST(Failures, OthersAreWhatTheyAre) {
  const std::error_code no_entry = std::make_error_code(std::errc::no_such_file_or_directory);
  EXPECT_EQ(failure_of(std::filesystem::filesystem_error("open", "a", no_entry)).exit_code,
            code_for(ErrorCode::kFileSystem));
  EXPECT_EQ(failure_of(std::system_error(no_entry)).exit_code, code_for(ErrorCode::kInternal));
  EXPECT_EQ(failure_of(std::invalid_argument("a")).exit_code, code_for(ErrorCode::kUsage));
  EXPECT_EQ(describe_failure(std::make_exception_ptr(7)).exit_code, code_for(ErrorCode::kInternal));
}

// As LibTorch's threads do: the exception meets a function that lets none out.
template <class Exception>
void end_by(const Exception& exception) {
  advise_where_memory_ends();
  const std::exception_ptr thrown = std::make_exception_ptr(exception);
  [&]() noexcept { std::rethrow_exception(thrown); }();
}

TEST(FailuresDeathTest, LackOfMemoryThatNobodyCanCatchHasItsCodeAndAdvice) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const c10::Error torch({"here", "there", 1},
                         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes");
  EXPECT_EXIT(end_by(std::bad_alloc()), ::testing::ExitedWithCode(code_for(ErrorCode::kMemory)),
              "Use a smaller microbatch, or more ranks");
  EXPECT_EXIT(end_by(torch), ::testing::ExitedWithCode(code_for(ErrorCode::kMemory)), "more ranks");
  EXPECT_EXIT(end_by(std::logic_error("a mistake")), ::testing::KilledBySignal(SIGABRT), "a mistake");
}

}  // namespace
}  // namespace fsdp::train
