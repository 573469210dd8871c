#include "fsdp/unit/advisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(Advisor, OneLargeUnitIsNamedWithItsShare) {
  const std::vector<UnitFigures> units{{"root", 300 * kMiB, 0, 0}, {"layers.0", 100 * kMiB, 0, 0}};
  EXPECT_THAT(advise_on_size(units, 2), AllOf(HasSubstr("'root'"), HasSubstr("75%"), HasSubstr("shard_where")));
  EXPECT_THAT(advise_on_size(units, 1), IsEmpty());
  EXPECT_THAT(advise_on_size({{"root", 40 * kMiB, 0, 0}}, 2), IsEmpty());
  EXPECT_THAT(advise_on_size({{"a", 100 * kMiB, 0, 0}, {"b", 100 * kMiB, 0, 0}}, 2), IsEmpty());
}

TEST(Advisor, PaddingAboveThreePercent) {
  EXPECT_THAT(advise_on_padding({{"a", 100 * kMiB, 4 * kMiB, 0}}), AllOf(HasSubstr("'a'"), HasSubstr("4%")));
  EXPECT_THAT(advise_on_padding({{"a", 100 * kMiB, 3 * kMiB, 0}}), IsEmpty());
  EXPECT_THAT(advise_on_padding({{"a", kMiB, kMiB / 2, 0}}), IsEmpty());
}

TEST(Advisor, ManySmallUnitsThatWait) {
  const std::vector<UnitFigures> units(12, {"u", 100 << 10, 0, 1});
  EXPECT_THAT(advise_on_latency(units, 0.3),
              AllOf(HasSubstr("12 units"), HasSubstr("30%"), HasSubstr("fully_shard({")));
  EXPECT_THAT(advise_on_latency(units, 0.05), IsEmpty());
  EXPECT_THAT(advise_on_latency(std::vector<UnitFigures>(12, {"u", kMiB, 0, 1}), 0.3), IsEmpty());
  EXPECT_THAT(advise_on_latency(std::vector<UnitFigures>(12, {"u", 1024, 0, 1}), 0.3), IsEmpty());
}

TEST(Advisor, ExposedCommunicationNamesWhoWaitsMost) {
  const std::vector<UnitFigures> units{{"a", kMiB, 0, 5}, {"b", kMiB, 0, 50}};
  EXPECT_THAT(advise_on_exposure(units, 0.21), AllOf(HasSubstr("21%"), HasSubstr("'b'")));
  EXPECT_THAT(advise_on_exposure(units, 0.2), IsEmpty());
}

TEST(Advisor, MemoryNearItsLimitListsTheThreeBestKnobs) {
  const std::vector<MemoryKnob> knobs{
      {"little", kMiB}, {"most", 9 * kMiB}, {"nothing", 0}, {"second", 5 * kMiB}, {"third", 2 * kMiB}};
  const std::string text = advise_on_memory({95, 100}, knobs);
  EXPECT_THAT(text, AllOf(HasSubstr("most, "), HasSubstr("second, "), HasSubstr("third, ")));
  EXPECT_LT(text.find("most"), text.find("second"));
  EXPECT_EQ(text.find("little"), std::string::npos);
  EXPECT_THAT(advise_on_memory({89, 100}, knobs), IsEmpty());
  EXPECT_THAT(advise_on_memory({95, 0}, knobs), IsEmpty());
  EXPECT_THAT(advise_on_memory({95, 100}, {}), HasSubstr("microbatches"));
}

TEST(Advisor, ASingleConnectionIsAMistakeOnCudaOnly) {
  EXPECT_THAT(advise_on_connections("1", true), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS"));
  EXPECT_THAT(advise_on_connections("8", true), IsEmpty());
  EXPECT_THAT(advise_on_connections("1", false), IsEmpty());
  EXPECT_THAT(advise_on_connections(nullptr, true), IsEmpty());
}

TEST(Advisor, MemoryOfThisMachineIsMeasured) {
  const MemoryFigures memory = measure_memory();
  EXPECT_GT(memory.limit, 0);
  EXPECT_GT(memory.used, 0);
  EXPECT_LE(memory.used, memory.limit);
}

// A model of 72 MiB in one unit: said once, to whoever listens.
TEST(Advisor, SpeaksOnceForEachSubject) {
  std::mutex mutex;
  std::vector<Advice> heard;
  set_advice_handler([&](const Advice& advice) {
    const std::lock_guard lock(mutex);
    heard.push_back(advice);
  });
  testing::run_ranks(2, [](const World& world) {
    auto model = testing::make_seeded(
        3, [] { return torch::nn::Sequential(torch::nn::Linear(3000, 3000), torch::nn::Linear(3000, 3000)); });
    fully_shard(*model, Mesh::shard(world));
    parameters(*model);
    for (int step = 0; step < 3; ++step) {
      model->forward(torch::ones({1, 3000})).sum().backward();
      zero_grad(*model);
    }
  });
  set_advice_handler({});
  const auto is_size = [](const Advice& advice) { return advice.subject == "one large unit"; };
  EXPECT_EQ(std::count_if(heard.begin(), heard.end(), is_size), 2);  // once on each rank
}

}  // namespace
}  // namespace fsdp
