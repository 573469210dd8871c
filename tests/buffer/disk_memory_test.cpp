#include "fsdp/buffer/disk_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/base/error.h"
#include "fsdp/buffer/disk_window.h"
#include "fsdp/optim/runs/disk_pass.h"
#include "kernels/flat/sum_squares.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::disk_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kNumel = int64_t{3} << 20;

class DiskMemoryTest : public ::testing::Test {
 protected:
  io::TemporaryFolder folder_;
  std::shared_ptr<DiskMemory> disk_ = std::make_shared<DiskMemory>(folder_.path());

  bool is_in_memory_itself() const {
    struct statfs system {};
    statfs(folder_.path().c_str(), &system);
    return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  }
};

TEST_F(DiskMemoryTest, TensorsAreOrdinaryOnes) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  EXPECT_TRUE(is_on_disk(tensor));
  EXPECT_FALSE(is_on_disk(torch::zeros({4})));
  EXPECT_TRUE(torch::equal(tensor, torch::zeros({kNumel})));
  const torch::Tensor wanted = torch::arange(kNumel, torch::kFloat);
  tensor.copy_(wanted);
  EXPECT_TRUE(torch::equal(tensor.narrow(0, 5, 100), wanted.narrow(0, 5, 100)));
  EXPECT_TRUE(is_on_disk(tensor.narrow(0, kNumel - 1, 1)));
}

TEST_F(DiskMemoryTest, WhatWasWrittenBehindComesBack) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  const torch::Tensor wanted = torch::arange(kNumel, torch::kFloat);
  tensor.copy_(wanted);
  write_behind(tensor);
  disk_->finish_writes();
  if (!is_in_memory_itself()) {
    EXPECT_EQ(bytes_in_memory(tensor), 0);
  }
  read_ahead(tensor);
  EXPECT_TRUE(torch::equal(tensor, wanted));
}

// Nobody waits for the writer before the next change.
TEST_F(DiskMemoryTest, ChangesWhileItIsWrittenAreKept) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  for (int pass = 0; pass < 20; ++pass) {
    tensor.add_(1);
    write_behind(tensor);
    tensor.narrow(0, kNumel / 2, 100).add_(1);
  }
  EXPECT_EQ(tensor[0].item<float>(), 20);
  EXPECT_EQ(tensor[kNumel / 2].item<float>(), 40);
  EXPECT_EQ(tensor.sum(torch::kDouble).item<double>(), 20.0 * (kNumel + 100));
}

TEST_F(DiskMemoryTest, SeveralThreadsPassOverIt) {
  const torch::Tensor tensor = disk_->zeros(8 * kNumel / 4, torch::kFloat);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([part = tensor.narrow(0, i * kNumel / 2, kNumel / 2), i] {
      for (int pass = 0; pass < 5; ++pass) {
        read_ahead(part);
        part.add_(static_cast<double>(i + 1));
        write_behind(part);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t i = 0; i < 4; ++i) {
    const torch::Tensor part = tensor.narrow(0, i * kNumel / 2, kNumel / 2);
    EXPECT_TRUE(torch::equal(part, torch::full_like(part, 5.0 * static_cast<double>(i + 1))));
  }
}

TEST_F(DiskMemoryTest, ForgottenContentIsNotReadAgain) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  tensor.fill_(7);
  write_behind(tensor);
  forget_content(tensor);
  tensor.fill_(8);
  EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 8)));
}

// Of both ways to reach a disk.
class DiskWindowTest : public DiskMemoryTest, public ::testing::WithParamInterface<DiskAccess> {
 protected:
  void SetUp() override { disk_ = std::make_shared<DiskMemory>(folder_.path(), GetParam()); }
};

// Parts that begin and end anywhere: their neighbours keep what they have.
TEST_P(DiskWindowTest, ChangesReachTheirPartAlone) {
  for (const at::ScalarType dtype : {torch::kFloat, torch::kBFloat16, torch::kByte}) {
    const torch::Tensor tensor = disk_->zeros(kNumel, dtype);
    torch::Tensor wanted = torch::arange(kNumel, torch::kInt).remainder(251).to(dtype);
    tensor.copy_(wanted);  // which waits in the page cache
    int64_t begin = 0;
    for (const int64_t numel : {5, 1019, 4096, 3, 700001, 1, 1000000}) {
      DiskWindow window(tensor.narrow(0, begin, numel), DiskWindow::Content::kKept);
      ASSERT_TRUE(torch::equal(window.tensor(), wanted.narrow(0, begin, numel)));
      window.tensor().add_(1);
      wanted.narrow(0, begin, numel).add_(1);
      window.write();
      EXPECT_FALSE(window.is_open());
      begin += numel;
    }
    DiskWindow whole(tensor, DiskWindow::Content::kKept);  // of what is under way
    EXPECT_TRUE(torch::equal(whole.tensor(), wanted));
    whole.close();
    disk_->finish_writes();
    EXPECT_TRUE(torch::equal(tensor, wanted)) << dtype;
  }
}

TEST_P(DiskWindowTest, NewContentReplacesTheOld) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  tensor.fill_(1);
  DiskWindow window(tensor, DiskWindow::Content::kNew);
  window.tensor().fill_(2);
  window.write();
  disk_->finish_writes();
  EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 2)));
}

TEST_P(DiskWindowTest, ADroppedWindowChangesNothingElsewhere) {
  const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
  {
    const DiskWindow window(tensor, DiskWindow::Content::kKept);  // goes before it arrived
  }
  EXPECT_TRUE(torch::equal(tensor, torch::zeros_like(tensor)));
}

// Slice after slice, with the bits of all at once.
TEST_P(DiskWindowTest, SlicesAddUpToTheWhole) {
  const int64_t numel = 2 * kDiskPiece + 777;
  const torch::Tensor first = disk_->zeros(numel, torch::kFloat), second = disk_->zeros(5, torch::kFloat);
  torch::manual_seed(3);
  first.normal_();
  second.normal_();
  DiskSlices slices({first, second}, DiskSlices::Use::kRead);
  for (const torch::Tensor& tensor : {first, second}) {
    double sum = 0;
    slices.pass([&](const torch::Tensor& slice) { sum = kernels::sum_squares(slice, sum); });
    EXPECT_EQ(sum, kernels::sum_squares(tensor.clone()));
  }
}

TEST_P(DiskWindowTest, WithoutADiskATensorIsItsOwnWindow) {
  const torch::Tensor tensor = torch::zeros({4});
  DiskWindow window(tensor, DiskWindow::Content::kNew);
  EXPECT_TRUE(window.tensor().is_same(tensor));
  window.write();
}

INSTANTIATE_TEST_SUITE_P(Access, DiskWindowTest, ::testing::Values(DiskAccess::kDirect, DiskAccess::kMapped),
                         [](const auto& info) { return info.param == DiskAccess::kDirect ? "Direct" : "Mapped"; });

TEST_F(DiskMemoryTest, RoomComesBackWithTheTensor) {
  {
    const torch::Tensor tensor = disk_->zeros(kNumel, torch::kFloat);
    tensor.fill_(1);
    write_behind(tensor);
    EXPECT_EQ(disk_->taken_bytes(), kNumel * 4);
  }
  EXPECT_EQ(disk_->taken_bytes(), 0);
  // Addresses may be the same; their content is not.
  const torch::Tensor next = disk_->zeros(kNumel, torch::kFloat);
  EXPECT_TRUE(torch::equal(next, torch::zeros_like(next)));
}

// A page of the cache may be as large as a huge page, and a change through the mapping writes all of it, also what a
// window has written since. So none has bytes of two tensors.
TEST_F(DiskMemoryTest, TensorsShareNoPageOfTheCache) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  std::vector<torch::Tensor> tensors;
  int64_t free_from = 0;
  for (const int64_t numel : {int64_t{1}, kNumel, int64_t{1000}}) {
    tensors.push_back(disk_->zeros(numel, torch::kFloat));
    const auto spot = find_on_disk(tensors.back());
    ASSERT_TRUE(spot);
    EXPECT_EQ(spot->offset % kHugePage, 0);
    EXPECT_GE(spot->offset, free_from);
    free_from = spot->offset + spot->bytes;
  }
  EXPECT_LT(disk_->taken_bytes(), kNumel * 4 + (1 << 16));  // of the file's room, what lies between takes none
}

TEST_F(DiskMemoryTest, TheFileHasNoName) {
  const torch::Tensor tensor = disk_->zeros(16, torch::kFloat);
  EXPECT_EQ(folder_.num_files(), 0u);
}

// A file system that cannot do it says why.
TEST_F(DiskMemoryTest, TheMappingAloneHasAReason) {
  EXPECT_EQ(disk_->queue() == nullptr, !disk_->why_mapped().empty()) << disk_->why_mapped();
  const DiskMemory mapped(folder_.path(), DiskAccess::kMapped);
  EXPECT_EQ(mapped.queue(), nullptr);
  EXPECT_EQ(mapped.why_mapped(), "");
}

TEST_F(DiskMemoryTest, TheEnvironmentChoosesTheAccess) {
  EXPECT_EQ(disk_access_from_environment(), DiskAccess::kDirect);
  setenv("FSDP_OFFLOAD", "mapped", /*overwrite=*/1);
  EXPECT_EQ(disk_access_from_environment(), DiskAccess::kMapped);
  setenv("FSDP_OFFLOAD", "fast", /*overwrite=*/1);
  std::string text;
  try {
    disk_access_from_environment();
  } catch (const Error& error) {
    text = error.what();
  }
  unsetenv("FSDP_OFFLOAD");
  EXPECT_THAT(text, AllOf(HasSubstr("FSDP_OFFLOAD"), HasSubstr("'fast'"), HasSubstr("direct"), HasSubstr("mapped")));
}

TEST_F(DiskMemoryTest, AFolderThatIsNotThereIsAnErrorByName) {
  try {
    const DiskMemory missing(folder_ / "missing");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFileSystem);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("missing"), HasSubstr("No such file or directory")));
  }
}

// A limit on the size of files stands in for a disk that is full: the system refuses the same call.
TEST_F(DiskMemoryTest, AFullDiskIsAnErrorByName) {
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit {};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlim_t old = limit.rlim_cur;
  limit.rlim_cur = rlim_t{1} << 20;
  setrlimit(RLIMIT_FSIZE, &limit);
  ErrorCode code{};
  std::string text;
  try {
    disk_->zeros(kNumel, torch::kFloat);
  } catch (const Error& error) {
    code = error.code();
    text = error.what();
  }
  limit.rlim_cur = old;
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(code, ErrorCode::kFileSystem);
  EXPECT_THAT(text, AllOf(HasSubstr(folder_.path().string()), HasSubstr("12.0 MiB"), HasSubstr("free")));
  EXPECT_EQ(disk_->taken_bytes(), 0);
}

}  // namespace
}  // namespace fsdp::disk_memory_test
