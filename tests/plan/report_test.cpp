// What people and programs get to see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "models/config/presets.h"
#include "plan/memory_picture.h"
#include "plan/report.h"

namespace fsdp::plan::report_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Report small_report(int64_t node = 8) {
  plan::Setup setup;
  setup.shards = 16;
  setup.node_size = node;
  setup.precision = parse_planned_precision("bf16");
  return make_report(decoder_model("smollm2-135m", models::find_preset("smollm2-135m")->config), setup,
                     {.reserve = int64_t{1} << 30, .network = {}});
}

TEST(PlanReport, PartsAddUp) {
  const Report report = small_report();
  int64_t sum = 0;
  const nlohmann::json json = to_json(report);
  for (const auto& part : json["memory"]["parts"]) sum += part.get<int64_t>();
  EXPECT_EQ(sum, report.memory.total());
  EXPECT_EQ(json["memory"]["peak"], sum);
  EXPECT_EQ(json["traffic"]["gather_bytes"].get<int64_t>() + json["traffic"]["reduce_bytes"].get<int64_t>(),
            json["traffic"]["inside_node"].get<int64_t>() + json["traffic"]["between_nodes"].get<int64_t>());
  EXPECT_EQ(json["memory"]["parts"]["reserve"], int64_t{1} << 30);
}

// What a disk holds is as large as in memory; of it memory has the pages on their way, whatever the model's size.
TEST(PlanReport, StateOnADiskIsNotInMemory) {
  plan::Setup setup;
  setup.shards = 2;
  setup.precision = parse_planned_precision("bf16");
  setup.transport = Transport::kSharedMemory;
  const PlannedModel model = decoder_model("smollm2-1.7b", models::find_preset("smollm2-1.7b")->config);
  setup.copies = GatheredCopies::kPerRank;
  const Report memory = make_report(model, setup);
  setup.state = StatePlace::kDisk;
  setup.copies = GatheredCopies::kOnePerHost;  // which a state on a disk overrides
  const Report disk = make_report(model, setup);
  EXPECT_EQ(disk.memory.all_elsewhere(), memory.memory.at_rest());
  EXPECT_EQ(disk.memory.at_rest(), 0);
  for (const Part part : {Part::kMainWeight, Part::kModelWeight, Part::kMainGrad, Part::kOptimizer}) {
    EXPECT_EQ(disk.memory.size_of(part), memory.memory[part]) << name(part);
  }
  EXPECT_LT(disk.memory[Part::kReserve], int64_t{1} << 30);
  EXPECT_EQ(disk.memory.total(), memory.memory.total() - memory.memory.at_rest() + disk.memory[Part::kReserve]);
  EXPECT_THAT(to_text(disk), AllOf(HasSubstr("  on a disk "), HasSubstr("state on a disk")));
  EXPECT_EQ(to_json(disk)["memory"]["on_disk"], memory.memory.at_rest());
}

// Alone with a GPU: what is computed with is gathered from a copy there, and gradients leave it by buffers.
TEST(PlanReport, AStateOnTheHostLeavesWeightsAndBuffersOnTheDevice) {
  plan::Setup setup;
  setup.precision = parse_planned_precision("bf16");
  setup.transport = Transport::kNccl;
  setup.whole_shard = WholeShard::kCopied;
  const PlannedModel model = decoder_model("smollm2-1.7b", models::find_preset("smollm2-1.7b")->config);
  const Report device = make_report(model, setup);
  setup.whole_shard = WholeShard::kInPlace;
  setup.state = StatePlace::kHost;
  const Report host = make_report(model, setup);
  EXPECT_EQ(host.memory.at_rest(), device.memory[Part::kModelWeight]);
  EXPECT_EQ(host.memory.all_elsewhere(), device.memory.at_rest() - device.memory[Part::kModelWeight]);
  EXPECT_EQ(host.step.held_bytes, device.step.held_bytes);
  EXPECT_EQ(device.memory.total() - host.memory.total(), host.memory.all_elsewhere());
  EXPECT_THAT(to_text(host), AllOf(HasSubstr("  on the host "), HasSubstr("state on the host")));
  EXPECT_EQ(to_json(host)["memory"]["on_host"], host.memory.all_elsewhere());
}

// Each size of product takes oneDNN as much; a model's seven maps have four sizes where keys are as wide as queries.
TEST(PlanReport, ProductsOnACpuTakeMemoryOfTheirOwn) {
  models::DecoderConfig config = models::find_preset("smollm2-1.7b")->config;
  config.vocab_size = 4096;  // so that logits are computed at once
  plan::Setup setup;
  setup.precision = parse_planned_precision("fp32");
  setup.work.sequence_length = 512;
  EXPECT_EQ(make_report(decoder_model("gpu", config), setup).memory[Part::kProducts], 0);
  setup.transport = Transport::kSharedMemory;
  const auto bytes = [&] { return make_report(decoder_model("cpu", config), setup).memory[Part::kProducts]; };
  const int64_t alike = bytes();  // both ways of four maps: attention's, gate and up, down, and the head's
  EXPECT_GT(alike, int64_t{4} << 20);
  EXPECT_LT(alike, int64_t{16} << 20);
  ASSERT_EQ(config.num_key_value_heads, config.num_attention_heads);
  config.num_key_value_heads /= 2;
  EXPECT_EQ(bytes() * 8, alike * 10);
  setup.precision = parse_planned_precision("bf16");  // gradients of weights are products of oneDNN, too
  EXPECT_GT(bytes() * 8, alike * 10);
}

TEST(PlanReport, TheTableNamesEveryPartThatIsThere) {
  const Report report = small_report();
  const std::string text = to_text(report);
  for (size_t i = 0; i < kNumParts; ++i) {
    const auto part = static_cast<Part>(i);
    if (report.memory[part] == 0) continue;
    EXPECT_THAT(text, HasSubstr("  " + std::string(name(part)) + " "));
  }
  EXPECT_THAT(text, HasSubstr(report.memory.where));
  EXPECT_THAT(text, HasSubstr("1 x 16 ranks, optim_grads_params, bf16, adamw; 1 x 1 sequences of 4096 tokens"));
}

TEST(PlanReport, SmallBuffersAndUnevenGroupsAreNoted) {
  EXPECT_THAT(to_text(small_report()), HasSubstr("too little for full bandwidth"));
  EXPECT_THAT(to_text(small_report(6)), HasSubstr("do not divide each other"));
  EXPECT_TRUE(small_report(16).traffic.warnings.empty());
}

// Widths are in proportion to bytes, nothing is fetched from elsewhere, and names cannot break out.
TEST(PlanReport, ThePictureShowsTheBytes) {
  const Report report = small_report();
  const std::string svg = memory_picture({{"<a & b>", report.memory}}, report.memory.total() * 2);
  EXPECT_THAT(svg, HasSubstr("&lt;a &amp; b&gt;"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_EQ(svg.find("href"), std::string::npos);
  EXPECT_EQ(svg.find("url("), std::string::npos);
  const std::regex bar("<rect x=\"[0-9.]+\" y=\"[0-9.]+\" width=\"([0-9.]+)\" height=\"34.0\" [^>]*><title>([a-z ]+):");
  double widths = 0;
  for (std::sregex_iterator i(svg.begin(), svg.end(), bar), end; i != end; ++i) widths += std::stod((*i)[1]);
  EXPECT_NEAR(widths, 880.0 / 2, 0.5);  // the scale ends at the limit
}

// A step of many microbatches is not walked to its end, but counted as if it were.
TEST(PlanReport, ManyMicrobatchesCountLikeAsMany) {
  plan::Setup setup;
  setup.shards = 8;
  setup.replicas = 2;
  setup.strategy = Strategy::kHybridOptim;
  setup.precision = parse_planned_precision("bf16");
  const PlannedModel model = decoder_model("smollm2-135m", models::find_preset("smollm2-135m")->config);
  const auto calls_of = [&](int64_t microbatches) {
    setup.work.microbatches = microbatches;
    return make_report(model, setup).step.calls;
  };
  const CallLedger four = calls_of(4), three = calls_of(3), nine = calls_of(9);
  EXPECT_EQ(nine.gathers, four.gathers + 5 * (four.gathers - three.gathers));
  EXPECT_EQ(nine.gathers, 9 * (2 * 31 - 2));  // M (2U - k)
  EXPECT_EQ(nine.reduces, 9 * 31);
  int64_t received = 0;
  for (const Collective& call : nine.collectives) received += call.received_bytes;
  EXPECT_EQ(received, nine.gather_bytes + nine.reduce_bytes);
}

}  // namespace
}  // namespace fsdp::plan::report_test
