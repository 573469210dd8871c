#include "fsdp/unit/advisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

// What was said about `subject` while two ranks ran `function`.
std::vector<std::string> said_about(const std::string& subject, const std::function<void(const World&)>& function) {
  std::mutex mutex;
  std::vector<std::string> texts;
  set_advice_handler([&](const Advice& advice) {
    const std::lock_guard lock(mutex);
    if (advice.subject == subject) texts.push_back(advice.text);
  });
  testing::run_ranks(2, function);
  set_advice_handler({});
  return texts;
}

// A model of 72 MiB in one unit: said once on each rank, to whoever listens.
TEST(Advisor, SpeaksOnceForEachSubject) {
  const auto texts = said_about("one large unit", [](const World& world) {
    auto model = testing::make_seeded(
        3, [] { return torch::nn::Sequential(torch::nn::Linear(3000, 3000), torch::nn::Linear(3000, 3000)); });
    fully_shard(*model, Mesh::shard(world));
    parameters(*model);
    for (int step = 0; step < 3; ++step) {
      model->forward(torch::ones({1, 3000})).sum().backward();
      zero_grad(*model);
    }
  });
  EXPECT_THAT(texts, SizeIs(2));
}

// A plain model's gradients would keep the graph that create_graph asks for.
TEST(Advisor, TellsOfGradientsThatLoseTheirGraph) {
  for (const bool create_graph : {false, true}) {
    const auto texts = said_about("gradients of gradients", [create_graph](const World& world) {
      auto model = testing::make_seeded(3, [] { return torch::nn::Sequential(torch::nn::Linear(4, 4)); });
      fully_shard(*model, Mesh::shard(world));
      parameters(*model);
      for (int step = 0; step < 2; ++step)
        model->forward(torch::ones({1, 4})).square().sum().backward({}, /*retain_graph=*/false, create_graph);
    });
    ASSERT_THAT(texts, SizeIs(create_graph ? 2 : 0));  // once on each rank
    EXPECT_THAT(texts, Each(HasSubstr("torch::autograd::grad")));
  }
}

}  // namespace
}  // namespace fsdp
