// A file larger than what a rank can spare: what saving and loading take is measured by the system, not by us.
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "fsdp/checkpoint/archive/archive.h"
#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::archive_streaming_test {
namespace {

using io::TemporaryFolder;
using testing::run_ranks;

constexpr int64_t kWidth = 1024;
constexpr int kUnits = 16;
constexpr int64_t kUnitBytes = kWidth * kWidth * 4;
constexpr int64_t kModelBytes = kUnits * kUnitBytes;

struct Tower : torch::nn::Module {
  Tower() {
    for (int i = 0; i < kUnits; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
  }
  std::vector<torch::nn::Linear> layers;
};

std::shared_ptr<Tower> make_tower(const World& world, double value) {
  const auto tower = std::make_shared<Tower>();
  const torch::NoGradGuard no_grad;
  for (auto& layer : tower->layers) {
    layer->weight.fill_(value);
    fully_shard(*layer, Mesh::shard(world));
  }
  fully_shard(*tower, Mesh::shard(world));
  return tower;
}

void expect_value(const Tower& tower, double value) {
  for (const torch::Tensor& leaf : parameters(tower)) EXPECT_TRUE((leaf == value).all().item<bool>());
}

// A number of /proc/self, after "name:"; nothing where the system does not tell.
std::optional<int64_t> number_of(const std::string& file, const std::string& name) {
  std::ifstream in("/proc/self/" + file);
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == name + ":" && in >> value) return value;
  }
  return std::nullopt;
}

// From now on, VmHWM is the largest VmRSS since.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

// Growth of the process, which is all ranks, while rank 0 lets them run `action`.
int64_t growth_of(const World& world, const std::function<void()>& action) {
  static int64_t before = 0;
  barrier(world, "made");
  if (world.rank == 0) {
    EXPECT_TRUE(reset_peak());
    before = number_of("status", "VmRSS").value() * 1024;
  }
  barrier(world, "measured");
  action();
  barrier(world, "done");
  return number_of("status", "VmHWM").value() * 1024 - before;
}

TEST(ArchiveStreaming, NoRankHoldsTheModel) {
  if (is_sanitized() || !number_of("status", "VmHWM") || !reset_peak()) GTEST_SKIP() << "memory cannot be measured";
  const TemporaryFolder folder;
  const std::string path = (folder / "model.pt").native();
  constexpr int kRanks = 2;
  run_ranks(kRanks, [&](const World& world) {
    const auto tower = make_tower(world, 0.5);
    fsdp::save(*tower, path);  // what LibTorch makes once
    fsdp::load(*tower, path);
    EXPECT_LT(growth_of(world, [&] { fsdp::save(*tower, path); }), kRanks * 3 * kUnitBytes);
    const auto other = make_tower(world, 0.25);
    EXPECT_LT(growth_of(world, [&] { fsdp::load(*other, path); }), kRanks * 3 * kUnitBytes);
    expect_value(*other, 0.5);
  });
}

TEST(ArchiveStreaming, EachRankReadsItsPart) {
  if (!number_of("io", "rchar")) GTEST_SKIP() << "reads cannot be counted";
  const TemporaryFolder folder;
  const std::string path = (folder / "model.pt").native();
  run_ranks(4, [&](const World& world) {
    const auto tower = make_tower(world, 0.5);
    fsdp::save(*tower, path);
    const auto other = make_tower(world, 0.25);
    barrier(world, "made");
    static int64_t before = 0;
    if (world.rank == 0) before = number_of("io", "rchar").value();
    barrier(world, "measured");
    fsdp::load(*other, path);
    barrier(world, "done");
    if (world.rank == 0) {
      EXPECT_LT(number_of("io", "rchar").value() - before, kModelBytes + kModelBytes / 4);
    }
    barrier(world, "compared");
    expect_value(*other, 0.5);
  });
}

}  // namespace
}  // namespace fsdp::archive_streaming_test
