#include "fsdp/comm/liveness/progress_note.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;

ProgressNote copy(const ProgressNote& note) { return ProgressNote::decode(note.encode()); }

TEST(ProgressNote, OfNothingSaysSo) {
  const ProgressNote note = ProgressNote::decode("");
  EXPECT_TRUE(note.calls.empty());
  EXPECT_FALSE(note.has_left);
  EXPECT_EQ(note.describe(), "it made no call yet");
  EXPECT_EQ(note.last_call(), "");
}

// Others may write to the store: what no rank of ours wrote is left out, and ends nobody's process.
TEST(ProgressNote, OfNonsenseIsEmpty) {
  for (const std::string text : {"a\x1f"
                                 "b\x1f"
                                 "c\x1e",
                                 "\x1f\x1f\x1e\x1f\x1f\x1e",
                                 "1\x1f"
                                 "1\x1f"
                                 "99999999999999999999\x1e",
                                 "1\x1f"
                                 "0\x1f"
                                 "1\x1e"
                                 "2\x1f"
                                 "77\x1fgather\x1e"}) {
    const ProgressNote note = ProgressNote::decode(text);
    EXPECT_TRUE(note.calls.empty());
    EXPECT_EQ(note.describe(), "it made no call yet");
  }
}

TEST(ProgressNote, TellsWhatARankDoes) {
  CallLog log;
  const int64_t first = log.issue({"gather", "a", "aten::linear reads 'a.weight'"}, 8);
  log.set_state(first, CallState::kWaiting);
  ProgressNote note = ProgressNote::of(log);
  note.beat = 7;
  EXPECT_EQ(copy(note).beat, 7);
  EXPECT_EQ(copy(note).calls[0].bytes, 8);
  EXPECT_EQ(copy(note).describe(), "it waits in gather of 'a' (aten::linear reads 'a.weight'), call 1");
  EXPECT_EQ(copy(note).last_call(), "gather of 'a' (aten::linear reads 'a.weight'), call 1");
  EXPECT_FALSE(note.gave_up());

  log.set_state(first, CallState::kFailed);
  EXPECT_EQ(copy(ProgressNote::of(log)).describe(),
            "it gave up in gather of 'a' (aten::linear reads 'a.weight'), call 1");
  EXPECT_TRUE(copy(ProgressNote::of(log)).gave_up());
}

TEST(ProgressNote, TellsHowLongAgoTheLastCallWas) {
  CallLog log;
  log.set_state(log.issue({"barrier", "", ""}, 1), CallState::kDone);
  std::this_thread::sleep_for(milliseconds(30));
  ProgressNote note = ProgressNote::of(log);
  EXPECT_GE(note.since_last_call, milliseconds(30));
  note.since_last_call = milliseconds(2500);
  EXPECT_EQ(copy(note).describe(), "its last call was barrier, call 1, 2.5 s ago");
  note.since_last_call = milliseconds(312400);
  EXPECT_EQ(copy(note).describe(), "its last call was barrier, call 1, 312 s ago");
}

TEST(ProgressNote, OfARankThatLeftSaysSo) {
  ProgressNote note;
  note.has_left = true;
  EXPECT_TRUE(copy(note).has_left);
}

}  // namespace
}  // namespace fsdp::comm
