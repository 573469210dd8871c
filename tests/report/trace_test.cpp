// Recorded steps: what a moment was spent on, why a rank waited, and what is no trace.
#include <gtest/gtest.h>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "report/trace/step_picture.h"
#include "report/trace/step_split.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::report {
namespace {

// By hand: a step of 10 ms whose forward waits twice for 'a' and once for 'b'.
RankTrace small_trace() {
  RankTrace trace;
  trace.rank = 1;
  trace.spans = {{0, 9, "gather", "before", "gather thread"},
                 {10, 20, "step", "7", "program"},
                 {10, 10.5, "data", "", "program"},
                 {11, 14, "forward", "a", "program"},
                 {11, 12, "wait gather", "a", "program"},
                 {10.5, 12, "gather", "a", "gather thread"},
                 {14, 16, "forward", "b", "program"},
                 {14, 14.25, "wait gather", "b", "program"},
                 {16, 18, "backward", "b", "program"},
                 {16, 16.5, "wait gather", "a", "program"},
                 {16.25, 16.5, "gather", "a", "gather thread"},
                 {18, 19, "optimizer", "", "program"},
                 {20, 25, "step", "8", "program"}};
  return trace;
}

TEST(StepSplit, EveryMomentCountsOnce) {
  const StepSplit split = split_step(small_trace(), 7);
  EXPECT_DOUBLE_EQ(split.length(), 10);
  EXPECT_DOUBLE_EQ(split[Spent::kData], 0.5);
  EXPECT_DOUBLE_EQ(split[Spent::kGatherWait], 1.75);
  EXPECT_DOUBLE_EQ(split[Spent::kForward], 2 + 1.75);
  EXPECT_DOUBLE_EQ(split[Spent::kBackward], 1.5);
  EXPECT_DOUBLE_EQ(split[Spent::kOptimizer], 1);
  EXPECT_DOUBLE_EQ(split[Spent::kRest], 0.5 + 1);
  double sum = 0, end = split.begin_ms;
  for (const SpentTime& piece : split.pieces) {
    EXPECT_DOUBLE_EQ(piece.begin_ms, end);
    sum += piece.end_ms - piece.begin_ms;
    end = piece.end_ms;
  }
  EXPECT_DOUBLE_EQ(sum, split.length());
}

TEST(StepSplit, CausesAreAddedUpAndExplained) {
  const StepSplit split = split_step(small_trace(), 7);
  ASSERT_EQ(split.causes.size(), 3U);
  EXPECT_EQ(split.causes[0].what, "gather of a");
  EXPECT_DOUBLE_EQ(split.causes[0].ms, 1.5);
  EXPECT_EQ(split.causes[0].times, 2);
  EXPECT_EQ(split.causes[0].detail, "its transfer took 1.50 ms and began 0.50 ms before it was needed");
  EXPECT_EQ(split.causes[1].what, "next batch");
  EXPECT_EQ(split.causes[2].what, "gather of b");
  const std::string text = to_text(split, 1);
  EXPECT_NE(text.find("1. 1.50 ms (15.0%) gather of a, 2 times"), std::string::npos) << text;
}

TEST(StepSplit, AStepThatWasNotRecordedIsRefused) {
  EXPECT_EQ(steps_of(small_trace()), (std::vector<int64_t>{7, 8}));
  try {
    split_step(small_trace(), 9);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("got 9, expected one that rank 1 recorded: 7, 8"), std::string::npos)
        << error.what();
  }
}

TEST(StepPicture, HasABarForEachPieceAndEscapesNames) {
  RankTrace trace = small_trace();
  for (TraceSpan& span : trace.spans)
    if (span.unit == "b") span.unit = "<b>&\"";
  const std::string svg = draw_step({{&trace, split_step(trace, 7)}}, "a <title>");
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("a &lt;title&gt;"), std::string::npos);
  EXPECT_NE(svg.find("gather a: 1.500 ms, from 0.500 to 2.000"), std::string::npos);
  EXPECT_EQ(svg.find("before"), svg.find("before it was needed")) << "another step's transfer";
  EXPECT_NE(svg.find("prefers-color-scheme"), std::string::npos);
}

TEST(TraceFile, WhatIsNoTraceIsRefused) {
  io::TemporaryFolder folder;
  EXPECT_THROW(read_trace(folder / "none.json"), Error);
  io::write_text(folder / "a.json",
                 "{\"traceEvents\": [{\"ph\": \"X\", \"pid\": 0}, 3, {\"ph\": \"X\", \"ts\": \"x\"}]}");
  EXPECT_THROW(read_trace(folder / "a.json"), Error);
  io::write_text(folder / "b.json", "{\"traceEvents\": [");
  EXPECT_THROW(read_trace(folder / "b.json"), io::Error);
  io::write_text(folder / "c.json", R"({"traceEvents": [{"ph": "M", "pid": 3, "tid": 1, "name": "thread_name",
    "args": {"name": "gather thread"}}, {"ph": "X", "pid": 3, "tid": 1, "ts": 1000, "dur": 500, "name": "gather u",
    "cat": "gather", "args": {"unit": "u"}}]})");
  const std::vector<RankTrace> traces = read_trace(folder / "c.json");
  ASSERT_EQ(traces.size(), 1U);
  EXPECT_EQ(traces[0].rank, 3);
  ASSERT_EQ(traces[0].spans.size(), 1U);
  EXPECT_DOUBLE_EQ(traces[0].spans[0].end_ms, 1.5);
  EXPECT_EQ(traces[0].spans[0].thread, "gather thread");
}

}  // namespace
}  // namespace fsdp::report
