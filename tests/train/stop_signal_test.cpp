// Requests to stop that come as signals, in this process.
#include "train/stop_signal.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(StopSignal, TheFirstThatComesIsKept) {
  for (const int number : kStopSignals) {
    const StopSignal stop;
    EXPECT_EQ(stop.received(), std::nullopt);
    raise(number);
    raise(SIGUSR1);
    EXPECT_EQ(stop.received(), number) << signal_name(number);
  }
}

TEST(StopSignal, ASecondOneAtOnceIsTheSameRequest) {
  const StopSignal stop;
  raise(SIGTERM);
  raise(SIGINT);
  EXPECT_EQ(stop.received(), SIGTERM);
}

TEST(StopSignal, UnderNohupAClosedTerminalIsNoRequest) {
  const auto before = signal(SIGHUP, SIG_IGN);
  {
    const StopSignal stop;
    raise(SIGHUP);
    EXPECT_EQ(stop.received(), std::nullopt);
  }
  EXPECT_EQ(signal(SIGHUP, before), SIG_IGN);
}

TEST(StopSignal, WhatWasThereIsPutBack) {
  const auto before = signal(SIGTERM, SIG_IGN);
  { const StopSignal stop; }
  EXPECT_EQ(signal(SIGTERM, before), SIG_IGN);
}

}  // namespace
}  // namespace fsdp::train
