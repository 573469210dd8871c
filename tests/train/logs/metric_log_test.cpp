// Where else than in metrics.jsonl the numbers of a run go.
#include "train/logs/metric_log.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/logs/event_records.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string line_of(int step, double loss) {
  return nlohmann::json{{"schema", 1},
                        {"step", step},
                        {"loss", loss},
                        {"mfu", nullptr},
                        {"memory", {{"params", 10 * step}, {"activations", nullptr}}}}
      .dump();
}

class MetricLogTest : public testing::Test {
 protected:
  MetricLogTest() {
    config_.folder = folder_ / "run";
    fs::create_directory(config_.folder);
    config_.tensorboard = true;
    config_.prometheus = folder_ / "fsdp.prom";
  }
  OutputFolder output() const { return {config_.folder}; }
  std::map<std::string, std::map<int64_t, float>> curves() const {
    std::vector<std::string> files = files_in(output().tensorboard());
    std::erase_if(files,
                  [](const std::string& file) { return file.find("events.out.tfevents.") == std::string::npos; });
    return event_records::shown(files);
  }
  // By name; the label and the type of each are checked.
  std::map<std::string, double> prometheus() const {
    std::map<std::string, double> values;
    std::istringstream text(read_text(config_.prometheus));
    std::string type;
    const std::regex number(R"x((fsdp_[a-z_]+)\{run="([^"]*)"\} (\S+))x");
    for (std::string line; std::getline(text, line);) {
      std::smatch match;
      if (line[0] == '#') {
        type = line;
      } else if (std::regex_match(line, match, number)) {
        EXPECT_EQ(type, "# TYPE " + match[1].str() + " gauge");
        EXPECT_EQ(match[2], config_.folder);
        values[match[1]] = std::stod(match[3]);
      } else {
        ADD_FAILURE() << line;
      }
    }
    return values;
  }

  io::TemporaryFolder folder_;
  OutputConfig config_;
};

TEST_F(MetricLogTest, TheReaderOfTheTestComputesSums) { EXPECT_EQ(event_records::crc32c("123456789"), 0xe3069283u); }

TEST_F(MetricLogTest, NumbersOfALineGoEverywhere) {
  MetricLog log(output(), config_, 0);
  log.append(line_of(1, 4.5));
  log.append(line_of(2, 3.25));
  log.append(R"({"schema":1,"step":2,"heldout":{"loss":2.75,"perplexity":15.6,"bits_per_byte":null}})");
  const std::map<std::string, std::map<int64_t, float>> expected = {{"train/loss", {{1, 4.5f}, {2, 3.25f}}},
                                                                    {"memory/params", {{1, 10.f}, {2, 20.f}}},
                                                                    {"heldout/loss", {{2, 2.75f}}},
                                                                    {"heldout/perplexity", {{2, 15.6f}}}};
  EXPECT_EQ(curves(), expected);
  std::map<std::string, double> now = prometheus();
  const std::chrono::duration<double> since_1970 = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_LE(now["fsdp_written_timestamp_seconds"], since_1970.count());
  EXPECT_GT(now["fsdp_written_timestamp_seconds"], since_1970.count() - 3600);
  now.erase("fsdp_written_timestamp_seconds");
  const std::map<std::string, double> values = {{"fsdp_step", 2},
                                                {"fsdp_loss", 3.25},
                                                {"fsdp_memory_params", 20},
                                                {"fsdp_heldout_loss", 2.75},
                                                {"fsdp_heldout_perplexity", 15.6}};
  EXPECT_EQ(now, values);
  EXPECT_EQ(files_in(folder_ / "").size(), 2U) << "a temporary file was left";
}

TEST_F(MetricLogTest, AnEventFileBeginsWithItsVersion) {
  MetricLog log(output(), config_, 0);
  const std::vector<std::string> files = files_in(output().tensorboard());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(fs::path(files[0]).filename().string().rfind("events.out.tfevents.", 0), 0U);
  const std::vector<event_records::ReadEvent> events = event_records::read_event_file(files[0]);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  EXPECT_TRUE(events[1].starts_session);
}

TEST_F(MetricLogTest, GoingBackForgets) {
  MetricLog log(output(), config_, 0);
  for (int step = 1; step <= 4; ++step) log.append(line_of(step, step));
  log.go_back_to(2);
  log.append(line_of(3, 30));
  const std::map<int64_t, float> expected = {{1, 1.f}, {2, 2.f}, {3, 30.f}};
  EXPECT_EQ(curves()["train/loss"], expected);
}

TEST_F(MetricLogTest, AResumedRunGoesOnAndANewOneStartsOver) {
  {
    MetricLog log(output(), config_, 0);
    for (int step = 1; step <= 3; ++step) log.append(line_of(step, step));
  }
  std::ofstream(output().tensorboard() / "notes.txt") << "mine";
  // Files are read in the order of their names, which begin with the second they were made in.
  for (const std::string& file : files_in(output().tensorboard())) {
    if (file.find("tfevents") != std::string::npos)
      fs::rename(file, output().tensorboard() / "events.out.tfevents.0000000001.host.1.0");
  }
  {
    MetricLog log(output(), config_, 2);
    log.append(line_of(3, 30));
  }
  std::map<int64_t, float> expected = {{1, 1.f}, {2, 2.f}, {3, 30.f}};
  EXPECT_EQ(curves()["train/loss"], expected);
  MetricLog log(output(), config_, 0);
  log.append(line_of(1, 7));
  expected = {{1, 7.f}};
  EXPECT_EQ(curves()["train/loss"], expected);
  EXPECT_EQ(files_in(output().tensorboard()).size(), 2U) << "the file of others stays";
}

TEST_F(MetricLogTest, APlaceThatCannotBeWrittenIsToldAtTheStartAndNotLater) {
  config_.prometheus = folder_ / "gone/fsdp.prom";
  try {
    MetricLog log(output(), config_, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("output.prometheus: "), std::string::npos) << error.what();
    EXPECT_EQ(error.code(), ErrorCode::kFileSystem);
  }
  fs::create_directory(folder_ / "gone");
  MetricLog log(output(), config_, 0);
  fs::remove_all(folder_ / "gone");
  EXPECT_NO_THROW(log.append(line_of(1, 1)));
  EXPECT_FALSE(read_text(output().metrics()).empty());
}

TEST_F(MetricLogTest, LabelsAreEscaped) {
  const fs::path file = folder_ / "label.prom";
  PrometheusFile(file, "a\"b\\c\nd").write({.step = 1, .numbers = {}});
  EXPECT_NE(read_text(file).find(R"(fsdp_step{run="a\"b\\c\nd"} 1)"), std::string::npos) << read_text(file);
}

TEST_F(MetricLogTest, WithoutThemThereIsNothing) {
  config_.tensorboard = false;
  config_.prometheus.clear();
  MetricLog log(output(), config_, 0);
  log.append(line_of(1, 1));
  EXPECT_EQ(files_in(config_.folder).size(), 1U);
  EXPECT_EQ(files_in(folder_ / "").size(), 1U);
}

}  // namespace
}  // namespace fsdp::train
