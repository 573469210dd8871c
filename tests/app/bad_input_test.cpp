// What a user gets wrong: one line that says what to do, the right exit code, nothing half-written, no hang.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

class BadInput : public TrainingFixture {
 protected:
  // One line on standard error that holds `part`.
  void expect_error(const CommandResult& result, int exit_code, const std::string& part) {
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_EQ(result.err.rfind("fsdp: ", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
    EXPECT_FALSE(fs::exists(path("out"))) << "something was written";
  }
  // The same below a launcher: that line once, then the launcher's report.
  void expect_launched_error(const CommandResult& result, int exit_code, const std::string& part) {
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    const size_t first = result.err.find("] fsdp: ");
    EXPECT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("] fsdp: ", first + 1), std::string::npos) << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
    EXPECT_LT(result.seconds, 30);
  }
  void truncate(const std::string& file, uintmax_t size) { fs::resize_file(file, size); }
};

TEST_F(BadInput, Configuration) {
  expect_error(run_fsdp(train("--train.stepz=3")), 2, "did you mean train.steps?");
  expect_error(run_fsdp("train " + path("none.toml")), 2, "none.toml: cannot be read");
  std::ofstream(path("bad.toml")) << "[train]\nstep = 3\n";
  expect_error(run_fsdp("train " + path("bad.toml")), 2,
               "bad.toml:2:1: unknown key train.step; did you mean train.steps?");
  expect_launched_error(launch_fsdp(3, "train " + path("bad.toml")), 2, "bad.toml:2:1");
  expect_error(run_fsdp("train"), 2, "data.path is not set");
  expect_error(run_fsdp("trian"), 2, "unknown verb trian; did you mean train?");
  expect_error(run_fsdp("frobnicate"), 2, "unknown verb frobnicate. `fsdp --help` lists the verbs");
  expect_error(run_fsdp("prepare --outpt x y"), 2, "[fsdp prepare]");
  for (const std::string option : {"-o", "--out", "--output"})
    expect_error(run_fsdp("prepare " + option + " x y"), 3, "[find] 'y': got no such file or folder");
  expect_error(run_fsdp("--version", {"FSDP_CPU_ISA=avx9"}), 2,
               "[FSDP_CPU_ISA] instruction set: got \"avx9\", expected one of native, scalar");
}

TEST_F(BadInput, DataThatIsMissingOrDamaged) {
  const std::string make_one = "expected a data set. Make one with `fsdp prepare`";
  expect_error(run_fsdp(train("--data.path=" + path("nothing"))), 3, "nothing: got nothing there, " + make_one);
  expect_error(run_fsdp(train("--data.path=" + path("text"))), 3, "got a folder without dataset.json, " + make_one);
  expect_error(run_fsdp(train("--data.path=" + path("run.toml"))), 3, "got a file, " + make_one);
  expect_error(run_fsdp(train("--data.train_split=tarin")), 3, "tarin");
  std::string shard;
  for (const auto& entry : fs::directory_iterator(path("data"))) {
    if (entry.path().filename().string().rfind("train", 0) == 0 && entry.path().extension() == ".bin") {
      shard = entry.path();
    }
  }
  truncate(shard, fs::file_size(shard) - 7);
  expect_error(run_fsdp(train()), 3, fs::path(shard).filename());
  expect_launched_error(launch_fsdp(2, train()), 3, fs::path(shard).filename());
  std::ofstream(path("data/dataset.json")) << "{ not json";
  expect_error(run_fsdp(train()), 3, "dataset.json");
}

TEST_F(BadInput, BatchAndWorldThatDoNotFit) {
  expect_launched_error(launch_fsdp(3, train()), 2, "expected a multiple of 3");
  expect_error(run_fsdp(train("--train.microbatch_sequences=3")), 2, "Set it to 9");
  expect_error(run_fsdp(train("--train.batch_sequences=4096")), 3, "one batch for 1 rank(s) needs 4096");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(BadInput, ModelsThatDoNotFit) {
  expect_error(run_fsdp(train("--model.vocab_size=100")), 2, "the data set has 259 tokens, the model only 100");
  expect_error(run_fsdp(train("--model.path=" + path("nothing"))), 4, "nothing");
  ASSERT_EQ(run_fsdp(train("--output.folder=" + path("good"))).exit_code, 0);
  const std::string load = "--model.path=" + path("good/model") + " --model.ffn_size=40";
  // A configuration for another model.
  std::ifstream in(path("good/model/config.json"));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string size = "\"intermediate_size\": 48";
  ASSERT_TRUE(contains(text, size));
  std::ofstream(path("good/model/config.json"))
      << text.replace(text.find(size), size.size(), "\"intermediate_size\": 40");
  expect_error(run_fsdp(train("--model.path=" + path("good/model"))), 2, "model.ffn_size: got 48 with model.path");
  // A row for each of 4 layers x 3 matrices, below a line and the names of the columns.
  const CommandResult other = run_fsdp(train(load));
  EXPECT_EQ(other.exit_code, 4) << other.err;
  EXPECT_TRUE(contains(other.err, "12 tensor(s) do not fit config.json")) << other.err;
  EXPECT_TRUE(contains(other.err, "model.layers.3.mlp.down_proj.weight  [32, 48]  [32, 40]")) << other.err;
  EXPECT_EQ(std::count(other.err.begin(), other.err.end(), '\n'), 14) << other.err;
  expect_launched_error(launch_fsdp(2, train(load)), 4, "12 tensor(s) do not fit config.json");
  EXPECT_FALSE(fs::exists(path("out")));
  truncate(path("good/model/model.safetensors"), 1000);
  expect_error(run_fsdp(train(load)), 4, "model.safetensors");
  fs::remove(path("good/model/model.safetensors"));
  expect_error(run_fsdp(train(load + " --model.weights=load")), 4, "model.safetensors");
  expect_error(run_fsdp("generate " + path("text")), 4, "got a folder without model.safetensors");
  expect_error(run_fsdp("generate " + path("data")), 4, "got a data set, expected a model");
  fs::create_directory(path("text/model"));
  std::ofstream(path("text/model/model.safetensors")).flush();
  expect_error(run_fsdp("generate " + path("text")), 4, "Did you mean '" + path("text/model") + "'?");
}

TEST_F(BadInput, OutputThatCannotBeUsed) {
  std::ofstream(path("file")) << "x";
  expect_error(run_fsdp(train("--output.folder=" + path("file"))), 7, "is a file. Choose a folder you may write to.");
  expect_error(run_fsdp(train("--output.folder=" + path("file/below"))), 7, "output.folder");
  expect_launched_error(launch_fsdp(2, train("--output.folder=" + path("file/below"))), 7,
                        "Choose a folder you may write to");
  ASSERT_EQ(run_fsdp(train("--output.folder=" + path("used"))).exit_code, 0);
  expect_error(run_fsdp(train("--output.folder=" + path("used"))), 2, "holds a run already");
  EXPECT_EQ(run_fsdp(train("--output.overwrite=replace --output.folder=" + path("used"))).exit_code, 0);
}

TEST_F(BadInput, ARunDoesNotReplaceWhatItStartsFrom) {
  const std::string folder = "--output.overwrite=replace --output.folder=" + path("used");
  ASSERT_EQ(run_fsdp(train(folder + " --checkpoint.every_steps=1")).exit_code, 0);
  expect_error(run_fsdp(train(folder + " --resume=" + path("used/checkpoints/step-6"))), 2,
               "checkpoint.resume: got " + path("used/checkpoints/step-6") + ", which output.overwrite");
  expect_error(run_fsdp(train(folder + " --model.path=" + path("used/./model"))), 2, "model.path: got");
  expect_launched_error(launch_fsdp(2, train(folder + " --tune.lora_from=" + path("used/model"))), 2, "tune.lora_from");
  // Nor before it has it.
  expect_error(run_fsdp(train(folder + " --resume=true")), 2, "got 'true', where there is nothing, expected auto");
  const std::string other = "--output.folder=" + path("other") + " --train.seed=9 --checkpoint.every_steps=1";
  ASSERT_EQ(run_fsdp(train(other)).exit_code, 0);
  const CommandResult of_other_data = run_fsdp(train(folder + " --resume=" + path("other/checkpoints/step-6")));
  EXPECT_NE(of_other_data.exit_code, 0);
  EXPECT_TRUE(contains(of_other_data.err, "[checkpoint] data: got")) << of_other_data.err;
  EXPECT_TRUE(std::filesystem::exists(path("used/checkpoints/step-6/manifest.json")));
  EXPECT_TRUE(std::filesystem::exists(path("used/model/config.json")));
  EXPECT_TRUE(std::filesystem::exists(path("used/metrics.jsonl")));
}

// The system's answer to a write past the limit is a signal that ends the program without a word.
TEST_F(BadInput, ALimitOnTheSizeOfFiles) {
  const CommandResult result = run_command({"bash", "-c", "ulimit -f 16 && exec " FSDP_BINARY " " + train()});
  EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
  EXPECT_TRUE(contains(result.err, "File too large")) << result.err;
  EXPECT_TRUE(contains(result.err, "model")) << result.err;
}

TEST_F(BadInput, LossThatExplodes) {
  const CommandResult result = launch_fsdp(2, train("--train.lr=1e30 --train.clip=0 --train.steps=50"));
  expect_launched_error(result, 6, "not finite");
  EXPECT_FALSE(fs::exists(path("out/model")));
}

TEST_F(BadInput, RanksThatWereStartedDifferently) {
  const std::string script = std::string(FSDP_BINARY) + " " + train("--train.seed=$RANK");
  const CommandResult seeds =
      run_command({FSDP_BINARY, "launch", "--nproc", "2", "--", "/bin/sh", "-c", "exec " + script});
  expect_launched_error(seeds, 2, "rank 1 was started with another configuration");
  fs::copy(path("data"), path("data0"), fs::copy_options::recursive);
  ASSERT_EQ(run_fsdp("prepare " + path("text/1.txt") + " " + path("text/2.txt") + " -o " + path("data1")).exit_code, 0);
  const std::string other = std::string(FSDP_BINARY) + " " + train("--data.path=" + path("data") + "$RANK");
  const CommandResult data =
      run_command({FSDP_BINARY, "launch", "--nproc", "2", "--", "/bin/sh", "-c", "exec " + other});
  expect_launched_error(data, 3, "rank 1 has split");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(BadInput, APeerThatDies) {
  const std::string script = "if [ $RANK = 1 ]; then (sleep 3; kill -9 $$) & fi; exec " + std::string(FSDP_BINARY) +
                             " " + train("--train.steps=1000000 --train.log_every=100000");
  const CommandResult result = run_command({FSDP_BINARY, "launch", "--nproc", "2", "--", "/bin/sh", "-c", script});
  EXPECT_EQ(result.exit_code, 128 + 9) << result.err;
  EXPECT_TRUE(contains(result.err, "rank 1 of 2 was killed by signal 9")) << result.err;
  EXPECT_LT(result.seconds, 33);
  EXPECT_FALSE(fs::exists(path("out/model")));
}

TEST_F(BadInput, APortInUse) {
  const int socket_fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(socket_fd, 1), 0);
  ASSERT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const CommandResult result = run_command(
      {FSDP_BINARY, "train", path("run.toml")},
      {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
  close(socket_fd);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_TRUE(contains(result.err, "port " + port)) << result.err;
  EXPECT_TRUE(contains(result.err, "fsdp launch")) << result.err;
}

TEST_F(BadInput, Corpora) {
  fs::create_directory(path("empty"));
  expect_error(run_fsdp("prepare " + path("empty") + " -o " + path("out")), 3, "empty");
  expect_error(run_fsdp("prepare " + path("nothing") + " -o " + path("out")), 3, "nothing");
  expect_error(run_fsdp("prepare " + path("text") + " -o " + path("data")), 2, "exists already");
  expect_error(run_fsdp("prepare " + path("text") + " -o " + path("out") + " --holdout 100%"), 2, "--holdout");
  expect_error(run_fsdp("prepare " + path("text") + " -o " + path("text/1.txt/below")), 7, "cannot be created");
  if (geteuid() != 0) {  // root may read everything
    fs::permissions(path("text/1.txt"), fs::perms::none);
    expect_error(run_fsdp("prepare " + path("text") + " -o " + path("out")), 7, "1.txt");
  }
}

}  // namespace
}  // namespace fsdp::app
