// FSDP_CPU_ISA holds the libraries' products to a set, too.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "kernels/raw/cpu_isa.h"

namespace fsdp::kernels::held_libraries_test {
namespace {

// Whether a product of matrices adds a * a without rounding it first. The summands lie so far apart that some two of
// them meet in one register, however the sum is cut.
bool fuses_multiply_and_add() {
  const float a = 1 + 0x1p-12F, rounded = 1 + 0x1p-11F;  // a * a = 1 + 2^-11 + 2^-24
  for (const int64_t distance : {1, 2, 4, 8, 16, 32}) {
    at::Tensor x = at::zeros({32, 64}), y = at::zeros({64, 32});
    x.select(1, 0).fill_(-1);
    y.select(0, 0).fill_(rounded);
    x.select(1, distance).fill_(a);
    y.select(0, distance).fill_(a);
    if (at::mm(x, y).ne(0).any().item<bool>()) return true;
  }
  return false;
}

TEST(HeldLibraries, FuseMultipliesAndAddsWhereTheKernelsDo) {
  const raw::CpuIsa isa = raw::cpu_isa();
  EXPECT_EQ(fuses_multiply_and_add(), isa != raw::CpuIsa::kScalar && isa != raw::CpuIsa::kSse4) << raw::name_of(isa);
}

TEST(HeldLibraries, DoSoOnEverySetOfThisMachine) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const raw::CpuIsa isa : raw::available_cpu_isas()) {
    const std::string command =
        "env -u ATEN_CPU_CAPABILITY -u ONEDNN_MAX_CPU_ISA -u MKL_ENABLE_INSTRUCTIONS -u MKL_CBWR FSDP_CPU_ISA=" +
        std::string(raw::name_of(isa)) + " '" + self +
        "' --gtest_filter=HeldLibraries.FuseMultipliesAndAddsWhereTheKernelsDo >&2";
    EXPECT_EQ(std::system(command.c_str()), 0) << raw::name_of(isa);
  }
}

}  // namespace
}  // namespace fsdp::kernels::held_libraries_test
