#include "fsdp/base/trace.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdp {
namespace {

TEST(Trace, InnermostCollectorOfTheThreadReceives) {
  const std::string none;
  const std::string unit = "unit";
  { const TraceScope nobody("lost", none); }
  TraceCollector outer;
  { const TraceScope scope("a", unit); }
  {
    const TraceCollector inner;
    { const TraceScope scope("b", none); }
    ASSERT_EQ(inner.events().size(), 1U);
    EXPECT_EQ(inner.events()[0].name, "b");
  }
  std::thread([&none] { const TraceScope scope("other thread", none); }).join();
  { const TraceScope scope("c", none); }
  ASSERT_EQ(outer.events().size(), 2U);
  EXPECT_EQ(outer.events()[0].unit, "unit");
  EXPECT_EQ(outer.events()[1].name, "c");
  outer.clear();
  EXPECT_TRUE(outer.events().empty());
}

// Threads that do the program's own work add to its collector.
TEST(Trace, AThreadMayAdoptTheCollectorOfAnother) {
  const std::string none;
  const TraceCollector collector;
  std::thread([&none, sink = current_trace_sink()] {
    {
      const TraceAdoption adoption(sink);
      const TraceScope scope("ours", none);
    }
    const TraceAdoption nothing(nullptr);
    const TraceScope scope("nobody's", none);
  }).join();
  ASSERT_EQ(collector.events().size(), 1U);
  EXPECT_EQ(collector.events()[0].name, "ours");
}

std::string shown;

TEST(Trace, RangesAreShownWhileTheyAreOpen) {
  static constexpr RangeViewer kViewer{[](const char* name, const std::string& unit) {
                                         shown += std::string("(") + name + " " + unit;
                                         return uint64_t{7};
                                       },
                                       [](uint64_t range) { shown += range == 7 ? ")" : "?"; }};
  const std::string unit = "a";
  set_range_viewer(&kViewer);
  {
    const TraceScope outer("gather", unit);
    const TraceScope inner("wait", unit);
  }
  set_range_viewer(nullptr);
  { const TraceScope unseen("reduce", unit); }
  EXPECT_EQ(shown, "(gather a(wait a))");
}

}  // namespace
}  // namespace fsdp
