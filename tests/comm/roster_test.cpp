// The first meeting: who is missing, claims a rank twice, or runs something else.
#include "fsdp/comm/rendezvous/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <thread>

#include "fsdp/base/error.h"
#include "fsdp/comm/rendezvous/build_id.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

struct Arrival {
  int rank;
  Member member;
};

struct Outcome {
  std::string text;
  ErrorCode code = ErrorCode::kInternal;
};

Member member(int size, const std::string& host = "a", int64_t process = 1) {
  return {host, process, size, "build 1", "settings 1"};
}

// All entries meet at once, each on a thread; what each got.
std::vector<Outcome> meet(const std::vector<Arrival>& entries, milliseconds deadline = std::chrono::seconds(20)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Outcome> outcomes(entries.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < entries.size(); ++i) {
    threads.emplace_back([&, i] {
      BoundedStore bounded(store);
      try {
        const Roster roster = Roster::meet(bounded, entries[i].rank, entries[i].member, deadline);
        for (int rank = 0; rank < entries[i].member.world_size; ++rank) outcomes[i].text += roster.name(rank) + ";";
      } catch (const Error& error) {
        outcomes[i] = {error.what(), error.code()};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_usage(const std::vector<Outcome>& outcomes, const std::string& text) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::kUsage) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(text));
  }
}

TEST(Roster, KnowsWhoIsWhere) {
  const auto outcomes = meet({{0, member(3, "a", 10)}, {1, member(3, "a", 11)}, {2, member(3, "b", 10)}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text,
              "rank 0 (host 'a', process 10);rank 1 (host 'a', process 11);rank 2 (host 'b', process 10);");
  }
}

TEST(Roster, NamesRanksThatAreMissing) {
  for (const int here : {0, 1}) {
    const auto outcomes = meet({{here, member(3)}}, milliseconds(100));
    EXPECT_EQ(outcomes[0].code, ErrorCode::kCommunication);
    EXPECT_THAT(outcomes[0].text, HasSubstr(here == 0 ? "have not started: 1, 2." : "have not started: 0, 2."));
  }
}

TEST(Roster, NamesARankThatTwoProcessesClaim) {
  const auto outcomes = meet({{0, member(3)}, {1, member(3, "a", 11)}, {1, member(3, "b", 12)}});
  expect_usage(outcomes, "both claim to be rank 1");
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("host 'a', process 11"), HasSubstr("host 'b', process 12")));
  }
}

TEST(Roster, NamesARankWithAnotherBuild) {
  std::vector<Arrival> entries;
  for (int rank = 0; rank < 4; ++rank) entries.push_back({rank, member(4, "a", rank)});
  entries[2].member.build = "build 2";
  expect_usage(meet(entries), "rank 2 (host 'a', process 2): build of fsdp: got build 2, expected build 1");
}

TEST(Roster, TheOddRankMayBeRankZero) {
  std::vector<Arrival> entries;
  for (int rank = 0; rank < 3; ++rank) entries.push_back({rank, member(3, "a", rank)});
  entries[0].member.settings = "settings 2";
  expect_usage(meet(entries), "rank 0 (host 'a', process 0): settings: got settings 2, expected settings 1");
}

TEST(Roster, OfTwoRanksTheSecondIsOdd) {
  std::vector<Arrival> entries = {{0, member(2)}, {1, member(2)}};
  entries[1].member.build = "another";
  expect_usage(meet(entries), "rank 1 (host 'a', process 1): build of fsdp: got another, expected build 1");
}

TEST(Roster, NamesARankThatWasToldOfAnotherWorldSize) {
  expect_usage(meet({{0, member(3)}, {1, member(2)}, {2, member(3)}}),
               "rank 1 (host 'a', process 1): world size: got 2");
  const auto outcomes = meet({{0, member(1)}, {1, member(2)}});
  EXPECT_EQ(outcomes[0].text, "rank 0 (host 'a', process 1);");
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 1 of 2: world size: got 2, expected 1 as on rank 0"));
}

TEST(Roster, ThisProcessHasAHostANumberAndABuild) {
  const Member self = Member::self(5);
  EXPECT_FALSE(self.host.empty());
  EXPECT_EQ(self.process, getpid());
  EXPECT_EQ(self.world_size, 5);
  EXPECT_EQ(self.build, build_id());
}

TEST(BuildId, TellsVersionLibraryAndProgram) {
  EXPECT_THAT(build_id(),
              MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+ \\(library ([0-9a-f]{16}|none), program ([0-9a-f]{16}|none)\\)"));
  EXPECT_EQ(build_id(), build_id());
}

}  // namespace
}  // namespace fsdp::comm
