// Pages about runs: what is in them for files of any kind, and that nothing of a file becomes markup.
#include "report/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>

#include "fsdp/base/error.h"
#include "report/chart.h"
#include "report/summary.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::report {
namespace {

namespace fs = std::filesystem;

class ReportPage : public testing::Test {
 protected:
  fs::path make_run(const std::string& name, const std::string& config = "[train]\nlr = 0.001\n") {
    fs::create_directory(folder_ / name);
    io::write_text(folder_ / (name + "/config.toml"), config);
    return folder_ / name;
  }
  fs::path put(const std::string& run, const std::string& file, const std::string& text) {
    io::write_text(folder_ / (run + "/" + file), text);
    return folder_ / run;
  }
  static std::string step_line(int step, double loss) {
    return R"({"step":)" + std::to_string(step) + R"(,"tokens":)" + std::to_string(64 * step) + R"(,"loss":)" +
           std::to_string(loss) +
           R"(,"grad_norm":1.5,"lr":0.001,"step_ms":10,"data_ms":1,"tokens_per_s":6400,"mfu":0.25,"memory":)"
           R"({"resident_bytes":8388608,"peak_bytes":9388608,"params":1048576,"grads":1048576,"optimizer":2097152,)"
           R"("activations":null,"comm":524288},"comm":{"gathers":4,"reduces":4,"bytes":10,"exposed_ms":8}})"
           "\n";
  }
  static std::string page(const std::vector<fs::path>& folders) {
    std::vector<RunRecord> runs;
    for (const fs::path& folder : folders) runs.push_back(read_run(folder));
    name_apart(runs);
    return write_page(runs, {"today", "fsdp 0", "fsdp report", {{"train.lr", "0.002"}}, {}});
  }
  static ErrorCode refusal(const fs::path& folder) {
    try {
      read_run(folder);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("output.folder"), std::string::npos) << error.what();
      return error.code();
    }
    return ErrorCode::kInternal;
  }

  io::TemporaryFolder folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(ReportPage, FiguresOfARun) {
  std::string lines;
  for (int step = 2; step <= 10; step += 2) lines += step_line(step, 5.0 / step);
  lines += R"({"step":10,"heldout":{"loss":0.75,"perplexity":2.117,"bits_per_byte":null,"bytes":0,"targets":9}})"
           "\n";
  make_run("one");
  const RunRecord run = read_run(put("one", "metrics.jsonl", lines));
  ASSERT_EQ(run.steps.size(), 5U);
  const Summary sum = summarize(run);
  EXPECT_EQ(sum.steps_done, 10);
  EXPECT_DOUBLE_EQ(sum.loss, 0.5);
  EXPECT_DOUBLE_EQ(sum.heldout, 0.75);
  EXPECT_DOUBLE_EQ(sum.exposed_ms, 4);  // 8 ms in two steps
  EXPECT_DOUBLE_EQ(sum.mfu, 0.25);
  EXPECT_DOUBLE_EQ(sum.peak_bytes, 9388608);
  const std::string html = page({run.folder});
  for (const char* part :
       {"Training report", "Held out", "Gradient norm", "Throughput", "Where a step goes",
        "waited for communication <b>4 ms</b> (40%)", "optimizer <b>2.0 MiB</b>", "<td class=\"mono\">0.002</td>"})
    EXPECT_TRUE(has(html, part)) << part;
}

TEST_F(ReportPage, NeedsNoNetworkAndRunsNoOthersScript) {
  make_run("a");
  put("a", "metrics.jsonl", step_line(1, 2));
  const std::string html = page({folder_ / "a"});
  EXPECT_FALSE(std::regex_search(html, std::regex(R"((src|href)=)"))) << "something is loaded";
  EXPECT_TRUE(has(html, "default-src 'none'"));
  EXPECT_EQ(count(html, "://"), count(html, "http://www.w3.org/2000/svg"));  // a name, not an address
}

TEST_F(ReportPage, TextOfFilesIsNoMarkup) {
  make_run("x<b>&", "[model]\npath = \"<img src=x onerror=alert(1)>\"\n");
  put("x<b>&", "metrics.jsonl", step_line(1, 2));
  put("x<b>&", "samples.jsonl",
      R"({"step":1,"prompt":"<i>\" onload=\"","text":")" + std::string("</pre><script>alert(1)</script>") + "\"}\n");
  put("x<b>&", "events.jsonl",
      R"({"time":1,"event":"<u>","step":1,"text":"<script>alert(2)</script>"})"
      "\n"
      R"({"time":1,"event":"skipped","step":1,"text":"\"/><script>alert(3)</script>"})"
      "\n");
  const std::string html = page({folder_ / "x<b>&"});
  EXPECT_EQ(count(html, "<script>"), 1U);
  for (const char* part : {"<img", "<b>&<", "<u>", "<i>"}) EXPECT_FALSE(has(html, part)) << part;
  EXPECT_TRUE(has(html, "&lt;script&gt;alert(2)"));
}

TEST_F(ReportPage, EmptyHalfWrittenAndForeignFiles) {
  make_run("empty");
  EXPECT_TRUE(has(page({folder_ / "empty"}), "No step has been logged yet"));
  make_run("torn");
  put("torn", "metrics.jsonl", step_line(1, 3) + "no json\n[1,2]\n{\"step\":-4}\n{\"step\":2,\"loss\":nul");
  put("torn", "ledger.jsonl",
      R"({"step":1,"loss":"zz","grad_norm":7})"
      "\n"
      R"({"step":2,"loss":"4008000000000000","grad_norm":"3ff0000000000000","skipped":true})"
      "\n");
  const RunRecord torn = read_run(folder_ / "torn");
  EXPECT_EQ(torn.steps.size(), 1U);
  ASSERT_EQ(torn.ledger.size(), 2U);
  EXPECT_TRUE(std::isnan(torn.ledger[0].loss));
  EXPECT_EQ(torn.ledger[1].loss, 3.0);
  const std::string html = page({folder_ / "torn"});
  EXPECT_TRUE(has(html, "3 lines of metrics.jsonl are no objects with a step"));
  EXPECT_TRUE(has(html, "The last line of metrics.jsonl has no end"));
  EXPECT_TRUE(has(html, "step 2 skipped"));
  make_run("null");
  put("null", "metrics.jsonl",
      R"({"step":1,"loss":null,"grad_norm":"x","memory":3,"comm":[]})"
      "\n{\"step\":2}\n{\"step\":1e999}\n{\"step\":9223372036854775807}\n");
  EXPECT_FALSE(has(page({folder_ / "null"}), "nan"));
  fs::create_directory(folder_ / "other");
  io::write_text(folder_ / "other/notes.txt", "hello");
  EXPECT_EQ(refusal(folder_ / "other"), ErrorCode::kUsage);
  EXPECT_EQ(refusal(folder_ / "nothing"), ErrorCode::kUsage);
  EXPECT_EQ(refusal(folder_ / "other/notes.txt"), ErrorCode::kUsage);
}

TEST_F(ReportPage, AnyBytesGiveAPage) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  make_run("noise");
  const std::string good = step_line(7, 2);
  for (int round = 0; round < 60; ++round) {
    for (const char* file : {"metrics.jsonl", "ledger.jsonl", "events.jsonl", "samples.jsonl", "config.toml"}) {
      std::string text =
          good + good + R"({"step":3,"event":"skipped","prompt":"p","text":"t","loss":"0000000000000000"})";
      for (int hit = 0; hit < 8; ++hit) text[random() % text.size()] = static_cast<char>(random());
      put("noise", file, text.substr(0, random() % text.size()));
    }
    EXPECT_TRUE(has(page({folder_ / "noise"}), "</html>"));
  }
}

TEST_F(ReportPage, SeveralRunsAreToldApart) {
  fs::create_directory(folder_ / "p");
  fs::create_directory(folder_ / "q");
  make_run("p/run", "[train]\nlr = 0.001\nsteps = 5\n[output]\nfolder = \"a\"\n");
  make_run("q/run", "[train]\nlr = 0.004\nsteps = 5\n[output]\nfolder = \"b\"\n");
  std::string rising, falling;
  for (int step = 1; step <= 60; ++step) {
    rising += step_line(step, 1 + 0.01 * step);
    falling += step_line(step, 3 - 0.01 * step);
  }
  put("p/run", "metrics.jsonl", rising);
  put("q/run", "metrics.jsonl", falling);
  const std::string html = page({folder_ / "p/run", folder_ / "q/run"});
  EXPECT_TRUE(has(html, "p/run")) << "equal names";
  EXPECT_TRUE(has(html, "q/run"));
  EXPECT_TRUE(has(html, "<td class=\"mono\">0.004</td>"));
  const size_t table = html.find("Where the runs differ");
  ASSERT_NE(table, std::string::npos);
  const std::string rows = html.substr(table, html.find("</table>", table) - table);
  EXPECT_FALSE(has(rows, "train.steps")) << "equal";
  EXPECT_FALSE(has(rows, "output.folder")) << "always differs";
  EXPECT_TRUE(has(html, "class=\"line r1\""));
}

TEST_F(ReportPage, WhatHappenedIsMarked) {
  make_run("a");
  put("a", "metrics.jsonl", step_line(1, 3) + step_line(9, 2) + step_line(12, 1));
  put("a", "events.jsonl",
      R"({"time":10,"event":"started","step":0,"text":"s","steps":20,"ranks":2,"parameters":5})"
      "\n"
      R"({"time":11,"event":"committed","step":8,"text":"c"})"
      "\n"
      R"({"time":30,"event":"resumed","step":8,"text":"r"})"
      "\n"
      R"({"time":70,"event":"stopped","step":12,"text":"by a signal"})"
      "\n");
  const RunRecord run = read_run(folder_ / "a");
  EXPECT_EQ(run.state, RunState::kStopped);
  EXPECT_DOUBLE_EQ(run.steps[1].exposed_ms, 8) << "one step since the resume";
  EXPECT_DOUBLE_EQ(run.steps[2].exposed_ms, 8.0 / 3);
  const Summary sum = summarize(run);
  EXPECT_EQ(sum.resumes, 1);
  EXPECT_DOUBLE_EQ(sum.seconds, 60);
  EXPECT_DOUBLE_EQ(sum.steps_planned, 20);
  const std::string html = page({folder_ / "a"});
  for (const char* part : {"stopped, can go on", "by a signal", "1 committed", "class=\"since r0\"", "of 20"})
    EXPECT_TRUE(has(html, part)) << part;
}

TEST(ReportChart, ValuesLieWhereTheyBelong) {
  Chart chart{"t", "", Unit::kPlain, AxisScale::kEven, AxisStart::kZero};
  chart.series.push_back({0, "s", "A", Stroke::kLine, {{0, 0}, {50, 5}, {100, 10}}});
  const std::string svg = draw_chart(chart, Shape::kCompact);
  std::smatch path;
  ASSERT_TRUE(
      std::regex_search(svg, path, std::regex(R"(class="line r0"[^>]* d="M(\S+) (\S+)L(\S+) (\S+)L(\S+) (\S+)\")")));
  const auto at = [&](size_t i) { return std::stod(path[i]); };
  EXPECT_NEAR(at(3), (at(1) + at(5)) / 2, 0.02);
  EXPECT_NEAR(at(4), (at(2) + at(6)) / 2, 0.02);
  EXPECT_GT(at(2), at(6)) << "up is more";
  EXPECT_EQ(draw_chart({"nothing", ""}, Shape::kWide), "");
}

TEST(ReportChart, LabelsDoNotStandOnEachOther) {
  Chart chart{"t", ""};
  for (int run = 0; run < kMostRuns; ++run)
    chart.series.push_back({run, "s", letter(run), Stroke::kLine, {{0, 1}, {9, 1}}});
  const std::string svg = draw_chart(chart, Shape::kCompact);
  const std::regex label(R"re(class="label r\d" x="\S+" y="(\S+)")re");
  std::vector<double> places;
  for (auto found = std::sregex_iterator(svg.begin(), svg.end(), label); found != std::sregex_iterator(); ++found)
    places.push_back(std::stod((*found)[1]));
  ASSERT_EQ(places.size(), static_cast<size_t>(kMostRuns));
  for (size_t i = 1; i < places.size(); ++i) EXPECT_GE(places[i] - places[i - 1], 13);
}

TEST(ReportNumbers, AreShort) {
  EXPECT_EQ(number_text(4.68934), "4.689");
  EXPECT_EQ(number_text(2197.4), "2,197");
  EXPECT_EQ(number_text(0.0001234), "0.000123");
  EXPECT_EQ(number_text(0.302, Unit::kPercent), "30.2%");
  EXPECT_EQ(number_text(std::nan("")), "-");
  EXPECT_EQ(number_text(1e300, Unit::kBytes), "-");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(duration_text(75), "1 min 15 s");
  EXPECT_EQ(moment_text(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(log_ticks(0.6, 500).size(), 9U);
}

}  // namespace
}  // namespace fsdp::report
