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

}  // namespace
}  // namespace fsdp
