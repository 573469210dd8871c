// Files that do not fit and places that cannot be written: every rank hears the same error, models and files stay as
// they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/script.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "fsdp/checkpoint/archive/archive.h"
#include "fsdp/fsdp.h"
#include "tests/checkpoint/archive_models.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::archive_refusal_test {
namespace {

using io::read_text;
using io::TemporaryFolder;
using io::write_text;
using ::testing::AllOf;
using testing::archive_case;
using testing::ArchiveModel;
using testing::expect_same_values;
using ::testing::HasSubstr;
using testing::make_model;
using testing::make_sharded;
using ::testing::Not;
using testing::run_ranks;
using testing::ShardedModel;

constexpr uint64_t kSeed = 21;
constexpr uint64_t kOtherSeed = 22;
constexpr int kRanks = 2;

// The code and text of the error that `function` throws; they must be the same on every rank.
struct Refusal {
  int code = 0;
  std::string text = "no error";
};

Refusal refusal_of(const World& world, const std::function<void()>& function) {
  Refusal refusal;
  try {
    function();
  } catch (const Error& error) {
    refusal = {static_cast<int>(error.code()), error.what()};
  }
  for (const std::string& other : gather_strings(world, std::to_string(refusal.code) + refusal.text)) {
    EXPECT_EQ(other, std::to_string(refusal.code) + refusal.text);
  }
  return refusal;
}

void expect_refusal(const Refusal& refusal, ErrorCode code, const ::testing::Matcher<std::string>& text) {
  EXPECT_EQ(refusal.code, static_cast<int>(code)) << refusal.text;
  EXPECT_THAT(refusal.text, text);
  EXPECT_THAT(refusal.text, Not(HasSubstr("\n")));
}

// ---- load()

// Loads `path_of(rank)` into a sharded model, which must refuse it and stay what it was, also to its optimizer.
void expect_load_refused(const std::string& model, const std::function<std::string(int rank)>& path_of, ErrorCode code,
                         const ::testing::Matcher<std::string>& text) {
  run_ranks(kRanks, [&](const World& world) {
    ShardedModel sharded = make_sharded(archive_case(model), kSeed, {}, world);
    const ArchiveModel whole = make_model(archive_case(model), kSeed);
    std::vector<int64_t> versions;
    for (const torch::Tensor& tensor : sharded.model.module->parameters()) versions.push_back(tensor._version());
    for (const torch::Tensor& leaf : parameters(*sharded.model.module)) versions.push_back(leaf._version());
    const Refusal refusal = refusal_of(world, [&] { fsdp::load(*sharded.model.module, path_of(world.rank)); });
    expect_refusal(refusal, code, text);
    expect_same_values(*sharded.model.module, *whole.module);
    size_t i = 0;
    for (const torch::Tensor& tensor : sharded.model.module->parameters()) EXPECT_EQ(tensor._version(), versions[i++]);
    for (const torch::Tensor& leaf : parameters(*sharded.model.module)) EXPECT_EQ(leaf._version(), versions[i++]);
    sharded.model.loss(torch::ones({4, testing::kArchiveFeatures})).backward();  // still works
  });
}

void expect_load_refused(const std::string& model, const std::string& path, ErrorCode code,
                         const ::testing::Matcher<std::string>& text) {
  expect_load_refused(
      model, [&](int) { return path; }, code, AllOf(text, HasSubstr(path)));
}

class ArchiveRefusal : public ::testing::Test {
 protected:
  std::string path() const { return (folder_ / "model.pt").native(); }

  TemporaryFolder folder_;
};

TEST_F(ArchiveRefusal, NamesTheTensorThatIsMissing) {
  torch::save(make_model(archive_case("nested"), kOtherSeed).module, path());
  expect_load_refused("convolutions", path(), ErrorCode::kCheckpoint, HasSubstr("'offset'"));
  struct TwoBlocks : torch::nn::Module {
    TwoBlocks() {
      auto whole = make_model(archive_case("nested"), kOtherSeed).module;
      auto blocks = torch::nn::ModuleList();
      const auto children = whole->named_children();
      for (size_t i = 0; i < 2; ++i) blocks->push_back(children["blocks"]->children()[i]);
      register_parameter("scale", whole->named_parameters()["scale"].detach());
      register_module("blocks", blocks);
      register_module("head", children["head"]);
    }
  };
  torch::save(std::shared_ptr<torch::nn::Module>(std::make_shared<TwoBlocks>()), path());
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("'blocks.2.up.weight'"));
}

TEST_F(ArchiveRefusal, NamesTheTensorOfAnotherShape) {
  const auto whole = make_model(archive_case("nested"), kOtherSeed).module;
  whole->named_parameters()["blocks.1.up.weight"].set_data(torch::zeros({36, 50}));
  torch::save(whole, path());
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint,
                      AllOf(HasSubstr("'blocks.1.up.weight'"), HasSubstr("[36, 50]"), HasSubstr("[50, 36]")));
  const auto convolutions = make_model(archive_case("convolutions"), kOtherSeed).module;
  convolutions->named_buffers()["table"].set_data(torch::zeros({2, 3}));
  torch::save(convolutions, path());
  expect_load_refused("convolutions", path(), ErrorCode::kCheckpoint,
                      AllOf(HasSubstr("'table'"), HasSubstr("[2, 3]"), HasSubstr("[40, 64]")));
}

TEST_F(ArchiveRefusal, NamesTheTensorOfComplexNumbers) {
  const auto whole = make_model(archive_case("nested"), kOtherSeed).module;
  whole->to(torch::kComplexFloat);
  torch::save(whole, path());
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("'scale'"));
}

TEST_F(ArchiveRefusal, NamesAFileThatIsNoArchive) {
  write_text(path(), "weights = [1, 2, 3]\n");
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("archive"));
  write_text(path(), "");
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("archive"));
  expect_load_refused("nested", folder_.path().native(), ErrorCode::kCheckpoint, HasSubstr("folder"));
  expect_load_refused("nested", (folder_ / "none.pt").native(), ErrorCode::kCheckpoint, HasSubstr("no such file"));
}

TEST_F(ArchiveRefusal, NamesATruncatedFile) {
  torch::save(make_model(archive_case("nested"), kOtherSeed).module, path());
  const std::string text = read_text(path());
  for (const size_t size : {size_t{1}, size_t{100}, text.size() / 2, text.size() - 1}) {
    write_text(path(), text.substr(0, size));
    expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("[load]"));
  }
}

TEST_F(ArchiveRefusal, NamesTheRankThatCannotReadTheFile) {
  torch::save(make_model(archive_case("nested"), kOtherSeed).module, path());
  const auto path_of = [&](int rank) { return rank == 1 ? path() + ".none" : path(); };
  expect_load_refused("nested", path_of, ErrorCode::kCheckpoint,
                      AllOf(HasSubstr(path() + ".none"), HasSubstr("rank 1")));
}

TEST_F(ArchiveRefusal, NamesTheTensorThatAScriptLacks) {
  const auto make = [](const char* name) {
    torch::jit::Module module("root");
    module.register_parameter(name, torch::ones({40, 40}).requires_grad_(), false);
    return module;
  };
  make("other").save(path());
  run_ranks(kRanks, [&](const World& world) {
    torch::jit::Module module = make("weight");
    fully_shard(module, Mesh::shard(world));
    const Refusal refusal = refusal_of(world, [&] { fsdp::load(module, path()); });
    expect_refusal(refusal, ErrorCode::kCheckpoint, AllOf(HasSubstr("'weight'"), HasSubstr(path())));
    for (const torch::Tensor& leaf : parameters(module)) EXPECT_TRUE((leaf == 1).all().item<bool>());
  });
}

// TorchScript can open files, and __setstate__ runs while LibTorch loads.
TEST_F(ArchiveRefusal, OfCodeThatWouldRunWhileTheFileIsRead) {
  const auto make = [] {
    torch::jit::Module module("root");
    module.register_parameter("weight", torch::ones({40, 40}).requires_grad_(), false);
    return module;
  };
  const std::string trace = (folder_ / "trace").native();
  torch::jit::Module armed = make();
  armed.define(c10::str("def __getstate__(self):\n  return self.weight\n",
                        "def __setstate__(self, state: Tensor):\n  self.weight = state\n  torch.save(state, \"", trace,
                        "\")\n"));
  armed.save(path());
  std::remove(trace.c_str());
  run_ranks(kRanks, [&](const World& world) {
    torch::jit::Module module = make();
    fully_shard(module, Mesh::shard(world));
    const Refusal refusal = refusal_of(world, [&] { fsdp::load(module, path()); });
    expect_refusal(refusal, ErrorCode::kCheckpoint, AllOf(HasSubstr("__setstate__"), HasSubstr(path())));
  });
  expect_load_refused("nested", path(), ErrorCode::kCheckpoint, HasSubstr("__setstate__"));
  EXPECT_FALSE(std::ifstream(trace).is_open());
  torch::jit::load(path());  // what would have happened
  EXPECT_TRUE(std::ifstream(trace).is_open());
}

// Its load() takes its weight over in another form.
struct Transposing : torch::nn::Module {
  Transposing() { weight = register_parameter("weight", torch::ones({40, 40})); }
  void load(torch::serialize::InputArchive& archive) override {
    torch::Tensor stored;
    archive.read("weight", stored);
    const torch::NoGradGuard no_grad;
    weight.copy_(stored.t());
  }
  torch::Tensor weight;
};

TEST_F(ArchiveRefusal, OfALoadThatChangesWhatItReads) {
  torch::save(std::make_shared<Transposing>(), path());
  run_ranks(kRanks, [&](const World& world) {
    Transposing module;
    fully_shard(module, Mesh::shard(world));
    const Refusal refusal = refusal_of(world, [&] { fsdp::load(module, path()); });
    expect_refusal(refusal, ErrorCode::kUsage, AllOf(HasSubstr("'weight'"), HasSubstr("before fully_shard()")));
    for (const torch::Tensor& leaf : parameters(module)) EXPECT_TRUE((leaf == 1).all().item<bool>());
  });
}

// ---- save()

// Saves a sharded model, which must fail and leave nothing behind. Then it is saved elsewhere.
void expect_save_refused(const std::string& path, ErrorCode code, const ::testing::Matcher<std::string>& text) {
  const TemporaryFolder elsewhere;
  run_ranks(kRanks, [&](const World& world) {
    ShardedModel sharded = make_sharded(archive_case("nested"), kSeed, {}, world);
    const ArchiveModel whole = make_model(archive_case("nested"), kSeed);
    expect_refusal(refusal_of(world, [&] { fsdp::save(*sharded.model.module, path); }), code,
                   AllOf(text, HasSubstr(path)));
    expect_same_values(*sharded.model.module, *whole.module);
    fsdp::save(*sharded.model.module, (elsewhere / "model.pt").native());
  });
  EXPECT_EQ(elsewhere.num_files(), 1U);
}

TEST_F(ArchiveRefusal, OfAPlaceThatCannotBeWritten) {
  expect_save_refused((folder_ / "none" / "model.pt").native(), ErrorCode::kFileSystem,
                      HasSubstr("No such file or directory"));
  write_text(folder_ / "file", "text");
  expect_save_refused((folder_ / "file" / "model.pt").native(), ErrorCode::kFileSystem, HasSubstr("Not a directory"));
  expect_save_refused(folder_.path().native(), ErrorCode::kFileSystem, HasSubstr("folder"));
  expect_save_refused(folder_.path().native() + "/", ErrorCode::kFileSystem, HasSubstr("folder"));
  expect_save_refused((folder_ / ".pt").native(), ErrorCode::kFileSystem, HasSubstr("[save]"));
  EXPECT_EQ(folder_.num_files(), 1U);
}

// Files of this process may not grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

struct Large : torch::nn::Module {
  Large() {
    for (int i = 0; i < 4; ++i) {
      register_module("layer" + std::to_string(i), torch::nn::Linear(torch::nn::LinearOptions(512, 512).bias(false)));
    }
  }
};

TEST_F(ArchiveRefusal, OfADiskThatIsFullLeavesTheOldFile) {
  const auto whole = testing::make_seeded(kSeed, [] { return std::make_shared<Large>(); });
  torch::save(whole, path());
  const std::string before = read_text(path());
  // In the middle of a weight, and at the very end of the file.
  for (const size_t limit : {size_t{2500000}, before.size() - 1}) {
    run_ranks(kRanks, [&](const World& world) {
      const auto sharded = testing::make_seeded(kOtherSeed, [] { return std::make_shared<Large>(); });
      for (const auto& layer : sharded->children()) fully_shard(*layer, Mesh::shard(world));
      fully_shard(*sharded, Mesh::shard(world));
      std::optional<FileSizeLimit> full;
      if (world.rank == 0) full.emplace(limit);
      const Refusal refusal = refusal_of(world, [&] { fsdp::save(*sharded, path()); });
      full.reset();
      expect_refusal(refusal, ErrorCode::kFileSystem, AllOf(HasSubstr(path()), HasSubstr("File too large")));
      EXPECT_TRUE(read_text(path()) == before);
      EXPECT_EQ(folder_.num_files(), 1U);
      barrier(world, "compared");
      fsdp::save(*sharded, path());
      EXPECT_EQ(folder_.num_files(), 1U);
      barrier(world, "saved");
      if (world.rank == 0) torch::save(whole, path());
    });
  }
}

struct Unwritable : torch::nn::Module {
  Unwritable() { weight = register_parameter("weight", torch::ones({40, 40})); }
  void save(torch::serialize::OutputArchive&) const override { TORCH_CHECK(false, "nothing can be written now"); }
  torch::Tensor weight;
};

TEST_F(ArchiveRefusal, OfASaveThatThrows) {
  run_ranks(kRanks, [&](const World& world) {
    Unwritable module;
    fully_shard(module, Mesh::shard(world));
    const Refusal refusal = refusal_of(world, [&] { fsdp::save(module, path()); });
    expect_refusal(refusal, ErrorCode::kUsage, AllOf(HasSubstr(path()), HasSubstr("nothing can be written now")));
    EXPECT_EQ(folder_.num_files(), 0U);
    EXPECT_EQ(module.weight.sizes(), (torch::IntArrayRef{40, 40}));
  });
}

TEST_F(ArchiveRefusal, OfAModuleThatIsNotSharded) {
  torch::nn::Linear module(3, 4);
  for (const auto& call : {std::function<void()>([&] { fsdp::save(*module, path()); }),
                           std::function<void()>([&] { fsdp::load(*module, path()); })}) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("torch::save()"));
    }
  }
}

struct WithView : torch::nn::Module {
  WithView() {
    weight = register_parameter("weight", torch::ones({8, 8}));
    register_buffer("row", weight.detach()[0]);
  }
  torch::Tensor weight;
};

TEST_F(ArchiveRefusal, OfABufferThatIsAViewOfAShardedParameter) {
  run_ranks(kRanks, [&](const World& world) {
    WithView module;
    fully_shard(module, Mesh::shard(world));
    module.named_buffers()["row"].set_data(module.weight.detach());
    const Refusal refusal = refusal_of(world, [&] { fsdp::save(module, path()); });
    expect_refusal(refusal, ErrorCode::kUsage, HasSubstr("'row'"));
  });
}

}  // namespace
}  // namespace fsdp::archive_refusal_test
