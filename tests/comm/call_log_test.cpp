#include "fsdp/comm/liveness/call_log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace fsdp::comm {
namespace {

std::vector<nlohmann::json> parse(const std::string& lines) {
  std::vector<nlohmann::json> objects;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

TEST(CallLog, StartsEmpty) {
  const CallLog log;
  EXPECT_TRUE(log.current().empty());
  EXPECT_EQ(log.dump_json(), "");
}

TEST(CallLog, TellsTheOpenCallsAndTheLastOne) {
  CallLog log;
  EXPECT_EQ(log.issue({"gather", "a", ""}, 10), 1);
  EXPECT_EQ(log.issue({"reduce", "b", "why"}, 20), 2);
  const int64_t revision = log.revision();
  log.set_state(1, CallState::kWaiting);
  EXPECT_GT(log.revision(), revision);
  ASSERT_EQ(log.current().size(), 2U);
  EXPECT_EQ(log.current()[0].state, CallState::kWaiting);
  EXPECT_EQ(log.current()[1].label.op, "reduce");
  log.set_state(2, CallState::kDone);
  ASSERT_EQ(log.current().size(), 2U);  // the open one, then the one that is over
  EXPECT_EQ(log.current()[1].state, CallState::kDone);
  log.set_state(1, CallState::kDone);
  ASSERT_EQ(log.current().size(), 1U);
  EXPECT_EQ(log.current()[0].number, 1);
}

TEST(CallLog, KeepsTheLast256AsJsonOldestFirst) {
  CallLog log;
  for (int i = 0; i < 600; ++i)
    log.set_state(log.issue({"gather", "unit" + std::to_string(i), ""}, i), CallState::kDone);
  log.set_state(10, CallState::kFailed);  // long overwritten: nothing happens
  const auto calls = parse(log.dump_json());
  ASSERT_EQ(calls.size(), CallLog::kCapacity);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i]["number"], 600 - 256 + 1 + static_cast<int>(i));
    EXPECT_EQ(calls[i]["unit"], "unit" + std::to_string(600 - 256 + i));
    EXPECT_EQ(calls[i]["bytes"], 600 - 256 + static_cast<int>(i));
    EXPECT_EQ(calls[i]["state"], "done");
    EXPECT_LE(calls[i]["begin_s"].get<double>(), calls[i]["end_s"].get<double>());
  }
}

TEST(CallLog, AnyTextIsLegalJson) {
  CallLog log;
  log.issue({"op\"\\", "tab\t line\n \x01", "caf\xc3\xa9 'x'"}, 0);
  const auto calls = parse(log.dump_json());
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0]["op"], "op\"\\");
  EXPECT_EQ(calls[0]["cause"], "caf\xc3\xa9 'x'");
}

TEST(CallLog, IsThreadSafe) {
  CallLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        log.set_state(log.issue({"gather", "", ""}, 1), CallState::kDone);
        log.current();
      }
    });
  }
  for (int i = 0; i < 20; ++i) parse(log.dump_json());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parse(log.dump_json()).back()["number"], 2000);
}

}  // namespace
}  // namespace fsdp::comm
