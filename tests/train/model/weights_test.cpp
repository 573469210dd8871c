// What a run writes is the whole model, however it is sharded and replicated.
#include "train/model/weights.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"
#include "tests/train/model/tuning_run.h"
#include "train/model/lora_files.h"

namespace fsdp {
namespace {

using testing::run_ranks;
using testing::TuningPlan;
using testing::TuningRun;

struct Layout {
  const char* strategy;
  int replicas;
  int ranks;
};

TEST(SavedModel, HasEveryElementWhateverTheLayout) {
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const Layout& layout : {Layout{"optim_grads_params", 1, 3}, Layout{"hybrid", 2, 4}, Layout{"hybrid", 3, 3},
                                 Layout{"hybrid_optim", 2, 4}, Layout{"no_shard", 1, 2}, Layout{"optim", 2, 4}}) {
      SCOPED_TRACE(precision + " " + layout.strategy);
      const io::TemporaryFolder folder;
      run_ranks(layout.ranks, [&](const World& world) {
        TuningPlan plan;
        plan.shard.strategy = layout.strategy;
        plan.shard.replicas = layout.replicas;
        plan.shard.precision = precision;
        plan.micro_rows = 1;
        TuningRun run(world, plan);
        train::save_model(run.model(), world, folder / "model", "none");
      });
      const io::ModelFolder saved = io::ModelFolder::open(folder / "model");
      for (const auto& item : testing::load_base()->named_parameters()) {
        at::Tensor read = at::empty_like(item.value()).detach();
        saved.read(item.key(), 0, read.numel(), read.data_ptr());
        EXPECT_TRUE(torch::equal(read, item.value())) << item.key();
      }
    }
  }
}

// Files of this process may not grow beyond `bytes`: a disk that is full.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

TEST(SavedModel, LeavesNothingWhereItCannotBeWritten) {
  for (const char* method : {"full", "lora"}) {
    const io::TemporaryFolder folder;
    run_ranks(1, [&](const World& world) {
      TuningPlan plan;
      plan.tune.method = method;
      plan.tune.lora_rank = 3;
      TuningRun run(world, plan);
      const auto save = [&] {
        if (run.tuning().lora) return train::save_adapter(run.model(), world, folder / "model", *run.tuning().lora, "");
        train::save_model(run.model(), world, folder / "model", "none");
      };
      {
        const SmallFiles limit(64);
        EXPECT_THROW(save(), Error) << method;
      }
      EXPECT_EQ(folder.num_files(), 0u) << method << ": the hidden folder is left";
      save();
      EXPECT_EQ(folder.num_files(), 1u) << method;
    });
  }
}

}  // namespace
}  // namespace fsdp
