#include "train/config/config_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::train {
namespace {

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = folder_ / "run.toml";
    std::ofstream(path) << text;
    return path;
  }
  // The message of the error, without the folder.
  std::string failure(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      load_config(text.empty() ? "" : write(text), overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      const size_t file = message.find("run.toml");
      return file == std::string::npos ? message : message.substr(file);
    }
    return "no error";
  }

  io::TemporaryFolder folder_;
};

TEST_F(ConfigFile, ReadsEveryTypeAndKeepsDefaults) {
  const Config config = load_config(write("[model]\nlayers = 3\ntie_embeddings = false\n[train]\nlr = 2e-3\nclip = 1\n"
                                          "[shard]\nstrategy = \"zero2\"\nreshard_after_forward = false\n"),
                                    {"--train.steps=77", "--output.folder=some where", "--train.lr=0.5"});
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_FALSE(config.model.tie_embeddings);
  EXPECT_EQ(config.train.clip, 1.0);
  EXPECT_EQ(config.train.lr, 0.5);
  EXPECT_EQ(config.train.steps, 77);
  EXPECT_EQ(config.shard.strategy, "zero2");
  EXPECT_EQ(config.shard.reshard_after_forward, "false");
  EXPECT_EQ(config.output.folder, "some where");
  EXPECT_EQ(config.train.beta2, Config().train.beta2);
}

TEST_F(ConfigFile, EmptyFileMeansDefaults) {
  EXPECT_EQ(config_to_toml(load_config(write(""), {})), config_to_toml(Config()));
}

TEST_F(ConfigFile, WhatItWritesReadsBackUnchanged) {
  Config config;
  config.train.lr = 0.1 + 0.2;
  config.model.path = "a \"quoted\" \\ path\twith \x01";
  config.train.weight_decay = 0;
  const std::string text = config_to_toml(config);
  EXPECT_EQ(config_to_toml(load_config(write(text), {})), text);
}

TEST_F(ConfigFile, AMixtureMayBeAList) {
  EXPECT_EQ(load_config(write("[data]\npath = [\"web:0.7\", \"books:0.3\"]\n"), {}).data.path, "web:0.7,books:0.3");
  EXPECT_EQ(load_config(write("[data]\npath = \"web\"\n"), {}).data.path, "web");
  for (const char* list : {"[]", "[1, 2]", "[\"web\", 2]"}) {
    EXPECT_NE(failure("[data]\npath = " + std::string(list) + "\n").find("run.toml:2:8"), std::string::npos) << list;
  }
  EXPECT_NE(failure("[output]\nfolder = [\"a\"]\n").find("run.toml:2:10"), std::string::npos);
}

TEST_F(ConfigFile, UnknownKeyNamesPlaceAndNearest) {
  EXPECT_EQ(failure("[train]\nlr = 1e-3\nwarmup = 3\n"),
            "run.toml:3:1: unknown key train.warmup; did you mean train.warmup_steps? "
            "`fsdp train --help` lists all keys");
  EXPECT_NE(failure("[trian]\nlr = 1\n").find("run.toml:2:1: unknown key trian.lr; did you mean train.lr?"),
            std::string::npos);
  EXPECT_NE(failure("[data]\nlr = 1\n").find("did you mean train.lr?"), std::string::npos);
  EXPECT_NE(failure("lr = 1\n").find("unknown key lr; did you mean train.lr?"), std::string::npos);
  EXPECT_NE(failure("[nothing]\n").find("unknown section [nothing]"), std::string::npos);
  EXPECT_NE(failure("", {"--train.stepz=4"}).find("--train.stepz: unknown key train.stepz; did you mean train.steps?"),
            std::string::npos);
}

TEST_F(ConfigFile, WrongTypeNamesPlaceAndExpectedType) {
  EXPECT_EQ(failure("[train]\nsteps = \"ten\"\n"),
            "run.toml:2:9: train.steps: got a value of type string, expected integer (at least 0)");
  EXPECT_NE(failure("[train]\nsteps = 1.5\n").find("expected integer"), std::string::npos);
  EXPECT_NE(failure("[model]\ntie_embeddings = 1\n").find("expected boolean"), std::string::npos);
  EXPECT_NE(failure("[train]\nlr = [1]\n").find("type array, expected number"), std::string::npos);
  EXPECT_NE(failure("", {"--train.steps=1e3"}).find("--train.steps: got \"1e3\", expected integer"), std::string::npos);
  EXPECT_NE(failure("", {"--train.lr=fast"}).find("expected number"), std::string::npos);
  EXPECT_NE(failure("", {"--train.lr"}).find("--train.lr: no value"), std::string::npos);
  EXPECT_NE(failure("", {"train.lr=1"}).find("unexpected argument"), std::string::npos);
}

TEST_F(ConfigFile, IllegalValueNamesWhatIsLegal) {
  EXPECT_EQ(failure("[train]\nsteps = -1\n"), "run.toml:2:9: train.steps: got -1, expected at least 0");
  EXPECT_NE(failure("[shard]\nprecision = \"fp64\"\n").find("expected one of: fp32, bf16"), std::string::npos);
  EXPECT_NE(failure("[train]\nlr = nan\n").find("expected at least 0"), std::string::npos);
  EXPECT_NE(failure("[train]\nmin_lr_ratio = 2.0\n").find("from 0 to 1"), std::string::npos);
}

TEST_F(ConfigFile, SyntaxErrorNamesPlace) {
  EXPECT_EQ(failure("[train]\nlr = = 2\n").rfind("run.toml:2:6: ", 0), 0u) << failure("[train]\nlr = = 2\n");
  EXPECT_NE(failure("[train]\nlr = 1\nlr = 2\n").find("run.toml:3:"), std::string::npos);
  EXPECT_EQ(failure("[%]\n").rfind("run.toml:1:2: ", 0), 0u) << failure("[%]\n");
  EXPECT_EQ(failure("[train]\n[[%]]\n").rfind("run.toml:2:3: ", 0), 0u) << failure("[train]\n[[%]]\n");
}

TEST_F(ConfigFile, AnIntegerBecomesTheNearestNumber) {
  EXPECT_EQ(load_config(write("[train]\nlr = 2\n"), {}).train.lr, 2.0);
  const Config config = load_config(write("[train]\nlr = 9007199254740993\n"), {});
  EXPECT_EQ(config.train.lr, 9007199254740992.0);
  EXPECT_EQ(load_config(write(config_to_toml(config)), {}).train.lr, config.train.lr);
  EXPECT_EQ(load_config(write("[train]\nlr = 9223372036854775807\n"), {}).train.lr, 0x1p63);
}

TEST_F(ConfigFile, LettersBeyondAsciiStandInQuotesAndCommentsAlone) {
  const std::string quoted = "# \u0414\n[data]\npath = '\u0414\"'\n[output]\nfolder = \"\\\"\u0414\" # '\u0414\n";
  EXPECT_EQ(failure(quoted), "no error");
  const std::string folded = "[data]\npath = \"\"\"a\\\n \u0414\"\"\"\n";
  EXPECT_EQ(load_config(write(folded), {}).data.path, "a\u0414");
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"[train]\nlr = \u0414\n", "2:6"},
      {"[train]\nlr = 1'\u0414'\n", "2:7"},
      {"[train]\nlr = 1.'\u0414'\n", "2:8"},
      {"[data]\npath = '''a\n\u0414'\n'''\u0414\n", "4:4"},
      {quoted + "\u0414", "6:1"}};
  for (const auto& [text, place] : refused)
    EXPECT_EQ(failure(text).rfind("run.toml:" + place + ": ", 0), 0u) << failure(text);
}

TEST_F(ConfigFile, ImpossibleCombinations) {
  EXPECT_NE(failure("", {"--model.heads=3"}).find("expected hidden_size / heads to be an even integer"),
            std::string::npos);
  EXPECT_EQ(failure("", {"--model.heads=6", "--model.head_dim=32"}), "no error");  // 256 / 6 has no part in it
  EXPECT_NE(failure("", {"--model.kv_heads=3"}).find("expected a divisor of model.heads 4"), std::string::npos);
  EXPECT_NE(failure("", {"--train.steps=10"}).find("expected at most train.steps 10"), std::string::npos);
  EXPECT_NE(failure("", {"--train.steps=0"}).find("got 0 without train.max_tokens"), std::string::npos);
  EXPECT_EQ(failure("", {"--train.steps=0", "--train.max_tokens=1000000"}), "no error");
  EXPECT_NE(failure("", {"--train.warmup_tokens=1000000", "--train.max_tokens=1000"})
                .find("train.warmup_steps: got 123, expected at most train.steps 1 (of train.max_tokens)"),
            std::string::npos);
  for (const char* key : {"train.on_nonfinite", "train.on_spike"}) {
    const std::string rollback = std::string("--") + key + "=rollback";
    EXPECT_NE(failure("", {rollback}).find("got \"rollback\" without checkpoints"), std::string::npos) << key;
    EXPECT_EQ(failure("", {rollback, "--checkpoint.every_steps=5"}), "no error") << key;
  }
  EXPECT_NE(failure("", {"--train.fit_minutes=3", "--train.warmup_steps=5"}).find("at least 10"), std::string::npos);
  EXPECT_NE(failure("", {"--model.weights=load"}).find("set model.path"), std::string::npos);
}

TEST_F(ConfigFile, HostileFilesAreRefused) {
  EXPECT_NE(failure("\"\\u001b[31m\\n\" = 1\n").find("unknown key \\x1b[31m\\x0a."), std::string::npos);
  EXPECT_NE(failure("", {"--\x1b[2J=1"}).find("unknown key \\x1b[2J."), std::string::npos);
  EXPECT_EQ(failure("", {"--output.folder=a\xb0"}), "--output.folder: got \"a\\xb0\", expected UTF-8");
  std::string deep = "a";
  for (int i = 0; i < 200'000; ++i) deep += ".a";
  for (const std::string& text : {deep + " = 1\n", "[" + deep + "]\n", "# fine\n" + deep + " = 1\n= 2\n"}) {
    EXPECT_NE(failure(text).find("more than 64 dots in a line"), std::string::npos);
  }
  EXPECT_NE(failure(std::string(2'000'000, '\n')).find("got more than 1048576 bytes"), std::string::npos);
  EXPECT_EQ(failure("# " + std::string(64, '.') + "\n"), "no error");
  const std::string long_key = failure(std::string(100'000, 'k') + " = 1\n");
  EXPECT_NE(long_key.find("unknown key kkk"), std::string::npos);
  EXPECT_LT(long_key.size(), 2100u);
}

TEST_F(ConfigFile, MissingFile) {
  try {
    load_config(folder_ / "none.toml", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("none.toml: cannot be read"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::train
