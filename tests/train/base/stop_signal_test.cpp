// Requests to stop that come as signals, in this process.
#include "train/base/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace fsdp::train {
namespace {

using Answer = StopSignal::Answer;

// To the process, as others send them.
void send(int number) { kill(getpid(), number); }

TEST(StopSignal, TheFirstThatComesIsNoted) {
  for (const int number : kStopSignals) {
    StopSignal stop;
    stop.answer_with(Answer::kNote);
    EXPECT_EQ(stop.received(), std::nullopt);
    send(number);
    EXPECT_EQ(stop.received(), number) << signal_name(number);
    send(SIGUSR1);
    EXPECT_EQ(stop.received(), number) << signal_name(number);
  }
}

TEST(StopSignal, ASecondOneAtOnceIsTheSameRequest) {
  StopSignal stop;
  stop.answer_with(Answer::kNote);
  send(SIGTERM);
  EXPECT_EQ(stop.received(), SIGTERM);
  send(SIGINT);
  EXPECT_EQ(stop.received(), SIGTERM);
}

// The thread that waits for requests may be about to look at one when it is to end.
TEST(StopSignal, EndsWhileARequestComes) {
  alarm(60);  // ends a process that waits forever
  for (int i = 0; i < 5000; ++i) {
    StopSignal stop;
    stop.answer_with(Answer::kNote);
    send(SIGUSR1);
    ASSERT_EQ(stop.received(), SIGUSR1);
  }
  alarm(0);
}

// What a thread does with signals that come while it computes: nothing.
TEST(StopSignal, NoThreadIsInterrupted) {
  StopSignal stop;
  sigset_t blocked;
  std::thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).join();
  for (const int number : kStopSignals) {
    EXPECT_EQ(sigismember(&blocked, number), 1) << signal_name(number);
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << signal_name(number);
  }
}

void end_by(int number, Answer answer, int times) {
  StopSignal stop;
  stop.answer_with(answer);
  for (int i = 0; i < times; ++i) {
    send(number);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // more than what makes two of them one request
  }
  std::_Exit(0);
}

TEST(StopSignal, EndsTheProcessUntilToldOtherwise) {
  for (const int number : kStopSignals) {
    EXPECT_EXIT(end_by(number, Answer::kEnd, 1), testing::KilledBySignal(number), "");
  }
}

TEST(StopSignal, ALaterOneEndsTheProcess) {
  EXPECT_EXIT(end_by(SIGTERM, Answer::kNoteAndTell, 2), testing::KilledBySignal(SIGTERM), "asked to stop");
  EXPECT_EXIT(end_by(SIGUSR1, Answer::kNote, 2), testing::ExitedWithCode(0), "");
}

TEST(StopSignal, UnderNohupAClosedTerminalIsNoRequest) {
  const auto before = signal(SIGHUP, SIG_IGN);
  {
    StopSignal stop;
    stop.answer_with(Answer::kNote);
    send(SIGHUP);
    send(SIGUSR1);
    EXPECT_EQ(stop.received(), SIGUSR1);
  }
  EXPECT_EQ(signal(SIGHUP, before), SIG_IGN);
}

TEST(StopSignal, ALateOneDoesNotChangeHowTheProcessEnds) {
  const auto end = [] {
    { const StopSignal stop; }
    send(SIGTERM);
    std::_Exit(75);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75), "");
}

}  // namespace
}  // namespace fsdp::train
