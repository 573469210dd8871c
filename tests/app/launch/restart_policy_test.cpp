#include "app/launch/restart_policy.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace fsdp::app {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ExitStatus kKilled{.by_signal = true, .number = SIGKILL};

ExitStatus code(int number) { return {.by_signal = false, .number = number}; }

EndedAttempt after(milliseconds uptime, ExitStatus status = kKilled) { return {.status = status, .uptime = uptime}; }

TEST(RestartPolicy, FailuresThatMayPass) {
  for (const int number : {1, 5, 7, 75, 9, 134, 255}) EXPECT_TRUE(is_retryable(code(number))) << number;
  for (const int number : {2, 3, 4, 6, 8, 126, 127}) EXPECT_FALSE(is_retryable(code(number))) << number;
  for (const int number : {SIGKILL, SIGSEGV, SIGTERM, SIGABRT}) {
    EXPECT_TRUE(is_retryable({.by_signal = true, .number = number})) << number;
  }
}

TEST(RestartPolicy, NothingIsSaidWhereNothingIsAllowed) {
  RestartPolicy policy({});
  const Verdict verdict = policy.judge(after(seconds(100)));
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.text, "");
}

TEST(RestartPolicy, LastingFailuresAreNotRepeated) {
  RestartPolicy policy({.max_restarts = 3});
  const Verdict verdict = policy.judge(after(seconds(100), code(4)));
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.text, "not restarted, because code 4 does not go away by itself");
}

TEST(RestartPolicy, RestartsAreCounted) {
  RestartPolicy policy({.max_restarts = 2});
  EXPECT_EQ(policy.judge(after(seconds(100))).text, "restart 1 of 2 in 1 s");
  EXPECT_EQ(policy.judge(after(seconds(100))).text, "restart 2 of 2 in 2 s");
  const Verdict last = policy.judge(after(seconds(100)));
  EXPECT_FALSE(last.restart);
  EXPECT_EQ(last.text, "no restart is left (2 of 2 used)");
}

TEST(RestartPolicy, TheWaitDoublesUpToAMinute) {
  RestartPolicy policy({.max_restarts = 1000});
  for (const int expected : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(policy.judge(after(seconds(100))).wait, seconds(expected));
  }
  for (int i = 0; i < 500; ++i) EXPECT_EQ(policy.judge(after(seconds(100))).wait, seconds(60));
}

TEST(RestartPolicy, AnyFirstWait) {
  RestartPolicy none({.max_restarts = 5, .backoff = seconds(0)});
  RestartPolicy fraction({.max_restarts = 5, .backoff = milliseconds(250)});
  RestartPolicy longer({.max_restarts = 5, .backoff = seconds(90)});
  for (const int quarters : {1, 2, 4}) {
    EXPECT_EQ(none.judge(after(seconds(100))).wait, seconds(0));
    EXPECT_EQ(fraction.judge(after(seconds(100))).wait, milliseconds(250 * quarters));
    EXPECT_EQ(longer.judge(after(seconds(100))).wait, seconds(90));
  }
}

TEST(RestartPolicy, ThreeShortAttemptsAreACrashLoop) {
  RestartPolicy policy({.max_restarts = 10});
  EXPECT_TRUE(policy.judge(after(milliseconds(9999))).restart);
  EXPECT_TRUE(policy.judge(after(seconds(0))).restart);
  const Verdict verdict = policy.judge(after(seconds(1)));
  EXPECT_FALSE(verdict.restart);
  EXPECT_EQ(verdict.text,
            "gave up with 8 restarts left, because 3 attempts in a row ended within 10 s and without a new checkpoint");
}

TEST(RestartPolicy, OnlyInARow) {
  RestartPolicy policy({.max_restarts = 10});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(policy.judge(after(seconds(1))).restart);
    EXPECT_TRUE(policy.judge(after(seconds(1))).restart);
    EXPECT_TRUE(policy.judge(after(seconds(10))).restart);
  }
}

TEST(RestartPolicy, ANewCheckpointIsProgress) {
  RestartPolicy policy({.max_restarts = 100});
  const auto committed = [](int64_t step) { return EndedAttempt{kKilled, seconds(1), step}; };
  for (int64_t step = 0; step < 5; ++step) EXPECT_TRUE(policy.judge(committed(step)).restart) << step;
  EXPECT_TRUE(policy.judge(committed(4)).restart);        // the same once more is not,
  EXPECT_TRUE(policy.judge(committed(2)).restart);        // nor is one before it,
  EXPECT_FALSE(policy.judge(after(seconds(1))).restart);  // nor none
}

TEST(RestartPolicy, NoTimeIsTooShortForZero) {
  RestartPolicy policy({.max_restarts = 5, .backoff = seconds(0), .min_uptime = seconds(0)});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(policy.judge(after(seconds(0))).restart);
  EXPECT_EQ(policy.judge(after(seconds(0))).text, "no restart is left (5 of 5 used)");
}

}  // namespace
}  // namespace fsdp::app
