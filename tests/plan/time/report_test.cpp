// What people and other programs read of a step's time.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "io/base/error.h"
#include "plan/time/chrome_trace.h"
#include "plan/time/hardware_file.h"
#include "plan/time/timeline_picture.h"
#include "tests/io/temporary_folder.h"
#include "tests/plan/time/chain.h"

namespace fsdp::plan::time::report_test {
namespace {

using nlohmann::json;
using testing::Chain;

const Chain kChain{{3, 3}, {6, 6}, {2, 2}, {4, 4}, {}};

TEST(StepReport, TheTableHasTheTotals) {
  const std::string text = to_text(kChain.predict());
  EXPECT_NE(text.find("step 24.00 ms: compute 18.00"), std::string::npos) << text;
  EXPECT_NE(text.find("exposed gather 2.00, exposed reduce 4.00"), std::string::npos) << text;
  EXPECT_NE(text.find("critical path: backward 12.00 ms (50.0%) forward 6.00 ms (25.0%) gather 2.00 ms (8.3%) reduce "
                      "4.00 ms (16.7%)"),
            std::string::npos)
      << text;
}

// The events of each thread follow each other, and are as long as the spans.
TEST(StepReport, TheTraceIsChromes) {
  const StepTime time = kChain.predict();
  const json trace = json::parse(to_chrome_trace(time.timeline, kChain.work()));
  std::map<int, std::string> threads;
  std::map<int, double> ends;
  std::map<std::string, double> durations;
  for (const json& event : trace["traceEvents"]) {
    const int thread = event["tid"];
    if (event["ph"] == "M") {
      threads[thread] = event["args"]["name"];
      continue;
    }
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"].get<double>(), ends[thread] - 1e-6);
    ends[thread] = event["ts"].get<double>() + event["dur"].get<double>();
    durations[threads.at(thread) + ": " + event["name"].get<std::string>()] += event["dur"].get<double>();
  }
  EXPECT_DOUBLE_EQ(durations.at("program: forward unit0"), 3000);
  EXPECT_DOUBLE_EQ(durations.at("program: wait reduce unit0"), 4000);
  EXPECT_DOUBLE_EQ(durations.at("gather thread: gather unit0"), 4000);
  EXPECT_DOUBLE_EQ(durations.at("reduce thread: reduce unit1"), 4000);
}

// Every element is closed, and nothing outside of the file is named.
void expect_whole(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)([^<>]*)>");
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), tag); at != std::sregex_iterator(); ++at) {
    const std::smatch& match = *at;
    if (match[1] == "/") {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), match[2]);
      open.pop_back();
    } else if (match[3].str().empty() || match[3].str().back() != '/') {
      open.push_back(match[2]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_EQ(svg.find("url("), std::string::npos);
}

TEST(StepReport, ThePictureIsWholeAndEscapesNames) {
  StepWork work = kChain.work();
  work.units[0].name = "a<b>&\"c\"";
  const std::string svg = to_svg(kChain.predict(), work, "<script>alert(1)</script>");
  expect_whole(svg);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("forward a&lt;b&gt;&amp;&quot;c&quot;: 2.000 to 5.000 ms"), std::string::npos) << svg;
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
}

// 80 blocks, 100 microbatches: bars that nobody could see are left out.
TEST(StepReport, ThePictureOfALongStepStaysSmall) {
  Chain chain;
  for (int i = 0; i < 80; ++i) {
    for (std::vector<double>* times : {&chain.forward, &chain.backward, &chain.gather, &chain.reduce})
      times->push_back(1);
  }
  chain.microbatches = 100;
  const std::string svg = to_svg(chain.predict(), chain.work(), "long");
  expect_whole(svg);
  EXPECT_LT(svg.size(), 3'000'000u);
}

TEST(HardwareFile, GivesBackWhatWasWritten) {
  const io::TemporaryFolder folder;
  for (const std::string& name : hardware_names()) {
    const std::string path = folder / (name + ".json");
    std::ofstream(path) << to_json(find_hardware(name)).dump(2);
    EXPECT_EQ(read_hardware_file(path), find_hardware(name)) << name;
    EXPECT_EQ(choose_hardware(path), choose_hardware(name)) << name;
  }
}

TEST(HardwareFile, SaysWhatIsWrong) {
  const json good = to_json(find_hardware("h100-sxm"));
  const auto error_of = [&](auto change) -> std::string {
    json changed = good;
    change(changed);
    try {
      parse_hardware(changed, "my.json");
    } catch (const io::Error& error) {
      EXPECT_EQ(error.kind(), io::ErrorKind::kUsage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([](json&) {}), "no error");
  EXPECT_EQ(error_of([](json& j) { j["execution"] = "gpu"; }),
            "[hardware] 'my.json', execution: got 'gpu', expected one of program_computes, host_runs_ahead.");
  EXPECT_EQ(error_of([](json& j) { j["node"].erase("bytes_per_second"); }),
            "[hardware] 'my.json', node.bytes_per_second: got 'nothing', expected bytes that one rank receives in a "
            "second.");
  EXPECT_EQ(error_of([](json& j) { j["node"]["speed"] = 3; }),
            "[hardware] 'my.json', node: got 'speed', expected one of bytes_per_second, hop_us.");
  EXPECT_EQ(error_of([](json& j) { j["peak_flops"]["bf16"] = "fast"; }),
            "[hardware] 'my.json', peak_flops.bf16: got '\"fast\"', expected a number.");
  EXPECT_EQ(error_of([](json& j) { j["processors"] = -1; }),
            "[hardware] 'my.json', processors: got '-1', expected a whole number from 0 to 1000000.");
  EXPECT_EQ(
      error_of([](json& j) { j.erase("memory_bytes_per_second"); }),
      "[hardware] 'my.json', memory_bytes_per_second: got 'nothing', expected bytes that are read or written in a "
      "second.");
  EXPECT_EQ(error_of([](json& j) { j["memory_efficiency"] = 1.5; }),
            "[hardware] memory_efficiency: got 1.500000, expected a share, above 0 and at most 1. In 'my.json'.");
  EXPECT_EQ(error_of([](json& j) { j["colour"] = "green"; })
                .rfind("[hardware] 'my.json', field: got 'colour', expected "
                       "one of attention_backward_efficiency, ",
                       0),
            0u);
  EXPECT_EQ(error_of([](json& j) { j = 3; }), "[hardware] 'my.json', hardware: got '3', expected an object.");
}

TEST(HardwareFile, ANameThatIsNoneListsThem) {
  try {
    choose_hardware("h10");
    FAIL() << "no error";
  } catch (const io::Error& error) {
    EXPECT_EQ(error.kind(), io::ErrorKind::kUsage);
    EXPECT_STREQ(error.what(),
                 "[hardware] got 'h10', expected one of a100-80gb, h100-sxm, h200, b200, cpu-core, or the path of a "
                 "hardware file (docs/plan_time.md).");
  }
}

}  // namespace
}  // namespace fsdp::plan::time::report_test
