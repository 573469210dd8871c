// Instruction sets as a user chooses and sees them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/raw/cpu_isa.h"
#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

using kernels::raw::CpuIsa;

bool has(CpuIsa isa) {
  const auto available = kernels::raw::available_cpu_isas();
  return std::find(available.begin(), available.end(), isa) != available.end();
}

// What a set that this test itself is held to leaves in the environment of its children.
void forget_held_libraries() {
  for (const char* name : {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"})
    unsetenv(name);
}

TEST(InstructionSets, TheVersionNamesThoseOfOursAndOfLibTorch) {
  forget_held_libraries();
  const CommandResult native = run_fsdp("--version", {"FSDP_CPU_ISA="});
  EXPECT_EQ(native.exit_code, 0);
  EXPECT_TRUE(contains(native.out, "(" + std::string(name_of(kernels::raw::available_cpu_isas().back()))))
      << native.out;
  EXPECT_FALSE(contains(native.out, "held")) << native.out;
  if (!has(CpuIsa::kAvx2)) GTEST_SKIP() << "this processor has no AVX2";
  const CommandResult avx2 = run_fsdp("--version", {"FSDP_CPU_ISA=avx2"});
  EXPECT_TRUE(contains(avx2.out, "avx2, held by FSDP_CPU_ISA") && contains(avx2.out, "AVX2)")) << avx2.out;
  const CommandResult sse4 = run_fsdp("--version", {"FSDP_CPU_ISA=sse4"});
  EXPECT_TRUE(contains(sse4.out, "sse4, held by FSDP_CPU_ISA") && contains(sse4.out, "DEFAULT)")) << sse4.out;
  const CommandResult own = run_fsdp("--version", {"FSDP_CPU_ISA=sse4", "ATEN_CPU_CAPABILITY=avx2"});
  EXPECT_TRUE(contains(own.out, "sse4") && contains(own.out, "AVX2)")) << own.out;
}

using InstructionSetsOfTraining = TrainingFixture;

TEST_F(InstructionSetsOfTraining, AreToldAndLearnTheSame) {
  forget_held_libraries();
  const auto available = kernels::raw::available_cpu_isas();
  const std::string first(name_of(available.front()));
  for (const CpuIsa isa : available) {
    const std::string name(name_of(isa));
    const CommandResult result = launch_fsdp(2, train("--output.folder=" + path(name)), {"FSDP_CPU_ISA=" + name});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "; " + name)) << result.out;
    const auto loss = [&](const std::string& folder) {
      double last = 0;
      for (const auto& line : read_lines(path(folder) + "/metrics.jsonl")) last = line.value("loss", last);
      return last;
    };
    EXPECT_GT(loss(name), 0);
    EXPECT_NEAR(loss(name), loss(first), 2e-4) << name;
  }
}

}  // namespace
}  // namespace fsdp::app
