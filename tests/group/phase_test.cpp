#include "fsdp/group/phase.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace fsdp {
namespace {

template <class Phase>
void expect_table(const std::set<std::pair<Phase, Phase>>& legal, const std::vector<Phase>& all) {
  for (const Phase from : all) {
    for (const Phase to : all) {
      const bool expected = legal.count({from, to}) > 0;
      EXPECT_EQ(is_legal(from, to), expected) << name(from) << " -> " << name(to);
      PhaseOf<Phase> phase(from);
      if (expected) {
        EXPECT_NO_THROW(phase.change_to(to));
        EXPECT_EQ(phase.value(), to);
      } else {
        EXPECT_THROW(phase.change_to(to), Error);
        EXPECT_EQ(phase.value(), from);
      }
    }
  }
}

TEST(Phase, Weights) {
  using enum WeightPhase;
  expect_table<WeightPhase>(
      {{kResting, kUnsharding}, {kUnsharding, kUnsharded}, {kUnsharded, kResting}, {kUnsharded, kUnsharding}},
      {kResting, kUnsharding, kUnsharded});
}

TEST(Phase, Gradients) {
  using enum GradPhase;
  expect_table<GradPhase>({{kEmpty, kCollecting}, {kCollecting, kReducing}, {kCollecting, kEmpty}, {kReducing, kEmpty}},
                          {kEmpty, kCollecting, kReducing});
}

TEST(Phase, AnIllegalChangeIsAnInternalErrorThatNamesBoth) {
  PhaseOf<WeightPhase> phase(WeightPhase::kResting);
  try {
    phase.change_to(WeightPhase::kUnsharded);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("resting -> unsharded"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fsdp
