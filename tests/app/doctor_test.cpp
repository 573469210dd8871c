// `fsdp doctor`: what it looks at, and what its exit code says.
#include <gtest/gtest.h>

#include <map>

#include "tests/app/training_fixture.h"

namespace fsdp::app::doctor_test {
namespace {

using nlohmann::json;

std::map<std::string, json> findings_of(const CommandResult& result) {
  std::map<std::string, json> findings;
  const json answer = json::parse(result.out, nullptr, false);
  EXPECT_TRUE(answer.is_object()) << result.out << result.err;
  if (!answer.is_object()) return findings;
  EXPECT_EQ(answer["works"].get<bool>(), result.exit_code == 0);
  for (const json& finding : answer["findings"]) findings[finding["what"]] = finding;
  return findings;
}

TEST(DoctorVerb, LooksAtEverythingAndSaysSo) {
  io::TemporaryFolder folder;
  const CommandResult result = run_fsdp("doctor --json --folder " + folder.path().string());
  auto findings = findings_of(result);
  EXPECT_EQ(result.exit_code, 0) << result.out;
  for (const char* what : {"versions", "cores", "instructions", "memory", "/dev/shm", "open files", "GPUs",
                           "arithmetic", "disk", "ports", "host name", "transport shm", "transport gloo"}) {
    ASSERT_TRUE(findings.count(what)) << what;
    EXPECT_NE(findings[what]["verdict"], "broken") << findings[what];
    EXPECT_EQ(findings[what]["verdict"] == "ok", findings[what]["advice"] == "") << findings[what];
  }
  EXPECT_EQ(folder.num_files(), 0) << "left something behind";
}

TEST(DoctorVerb, ABrokenDiskIsHowTrainingWouldFail) {
  const CommandResult result = run_fsdp("doctor --quick --json --folder /proc");
  EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
  auto findings = findings_of(result);
  EXPECT_EQ(findings["disk"]["verdict"], "broken");
  EXPECT_EQ(findings["disk"]["exit_code"], 7);
  const CommandResult text = run_fsdp("doctor --quick --folder /proc");
  EXPECT_TRUE(contains(text.out, "Training would not work here: 1 thing is broken.")) << text.out;
}

TEST(DoctorVerb, RanksCompareClocksAndMeasureTheirLink) {
  const CommandResult result = launch_fsdp(2, "doctor --quick", {"FSDP_TRANSPORT=gloo"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* part : {"clocks", "ms apart", "transport gloo", "GB/s", "2, 2 on this host, started by fsdp launch"})
    EXPECT_TRUE(contains(result.out, part)) << part << result.out;
  EXPECT_FALSE(contains(result.out, "[1]")) << "told twice";
  const CommandResult broken = launch_fsdp(2, "doctor --quick --folder /proc");
  EXPECT_EQ(broken.exit_code, 7) << broken.out << broken.err;
}

}  // namespace
}  // namespace fsdp::app::doctor_test
