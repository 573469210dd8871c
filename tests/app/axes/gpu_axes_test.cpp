// `fsdp train --shard.device=cuda` on one GPU that all ranks share: every axis, and what rests on the host or a disk,
// is the run of one rank of the CPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/app/axes/mesh_fixture.h"

namespace fsdp::app {
namespace {

class GpuAxes : public MeshRuns {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/proc/driver/nvidia/version")) GTEST_SKIP() << "there is no GPU here";
    MeshRuns::SetUp();
  }
  using Meshes = std::vector<std::pair<int, std::string>>;
  void expect_runs_of_the_cpu(const std::string& model, const Meshes& meshes) const {
    const CommandResult one = launch_fsdp(1, run("one", model));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    for (const auto& [ranks, mesh] : meshes) {
      SCOPED_TRACE(mesh);
      std::filesystem::remove_all(path("cut"));
      const CommandResult result =
          launch_fsdp(ranks, run("cut", model + " --shard.device=cuda " + mesh), {"FSDP_DEVICE_TRANSPORT=host"});
      ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
      expect_same_run("cut", "one", 1e-4);
    }
  }
};

TEST_F(GpuAxes, AreTheRunOfOneRank) {
  expect_runs_of_the_cpu("--train.microbatch_sequences=3", {{1, ""},
                                                            {1, "--shard.offload=disk"},
                                                            {1, "--shard.offload=host"},
                                                            {1, "--train.recompute=offload"},
                                                            {2, "--shard.offload=host --train.recompute=offload"},
                                                            {2, "--shard.strategy=optim_grads"},
                                                            {2, "--shard.offload=disk"},
                                                            {2, "--mesh.tp=2"},
                                                            {2, "--mesh.cp=2"},
                                                            {2, "--mesh.cp=2 --mesh.cp_exchange=ring"},
                                                            {2, "--mesh.pp=2"},
                                                            {4, "--mesh.pp=2 --mesh.tp=2"},
                                                            {4, "--mesh.pp=2 --mesh.cp=2"}});
}

TEST_F(GpuAxes, ExpertsAreThoseOfOneRank) {
  const std::string experts = "--model.family=mixtral --model.experts=4 --model.balance_loss=0 ";
  expect_runs_of_the_cpu(experts, {{1, ""}, {2, "--mesh.ep=2"}, {4, "--mesh.ep=2 --mesh.tp=2"}});
}

}  // namespace
}  // namespace fsdp::app
