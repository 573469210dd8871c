// From documents to training: `fsdp prepare` that is killed, mixtures, conversations, and what a user gets wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder)] = read_file(entry.path());
  }
  return files;
}

void replace_in(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  ASSERT_NE(text.find(from), std::string::npos) << path << ": " << text;
  std::ofstream(path, std::ios::binary) << text.replace(text.find(from), from.size(), to);
}

class Data : public TrainingFixture {
 protected:
  void write_json_lines(const std::string& name, int count) {
    std::ofstream file(path(name));
    for (int i = 0; i < count; ++i) {
      file << nlohmann::json{{"text", "document number " + std::to_string(i) + " of " + name}} << "\n";
    }
  }
  // One line on standard error that holds `part`.
  void expect_error(const CommandResult& result, int exit_code, const std::string& part) {
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_EQ(result.err.rfind("fsdp: ", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  }
  void must(const CommandResult& result) { ASSERT_EQ(result.exit_code, 0) << result.out << result.err; }
  // A second data set, of other text.
  void prepare_other(const std::string& name, const std::string& more = "") {
    write_json_lines("other.jsonl", 400);
    must(run_fsdp("prepare " + path("other.jsonl") + " -o " + path(name) + " " + more));
  }
  std::string mixture(const std::string& text) { return train("--data.path=" + text + " "); }
};

TEST_F(Data, PrepareGoesOnAfterAKill) {
  write_json_lines("large.jsonl", 30000);
  const std::string command = "prepare " + path("large.jsonl") + " --shard-bytes 100000 --threads 2 -o ";
  must(run_fsdp(command + path("reference")));
  for (const char* hit : {"3", "2"}) {
    const CommandResult killed =
        run_fsdp(command + path("killed"), {std::string("FSDP_FAULT=kill@prepare.piece:hit=") + hit});
    EXPECT_EQ(killed.exit_code, 128 + 9) << killed.err;
    EXPECT_FALSE(fs::exists(path("killed")));
  }
  const CommandResult result = run_fsdp(command + path("killed"));
  must(result);
  EXPECT_TRUE(contains(result.out, "5 pieces were finished by a run that was interrupted")) << result.out;
  EXPECT_TRUE(contents(path("killed")) == contents(path("reference")));
  EXPECT_FALSE(fs::exists(path(".killed.prepare")));
}

TEST_F(Data, PrepareTellsWhatItDid) {
  write_json_lines("large.jsonl", 1000);
  std::ofstream(path("large.jsonl"), std::ios::app) << "{\"text\": 7}\n";
  expect_error(run_fsdp("prepare " + path("large.jsonl") + " -o " + path("out")), 3, "large.jsonl':1001");
  const CommandResult result =
      run_fsdp("prepare " + path("large.jsonl") + " --bad-record skip --holdout 20 -o " + path("out"));
  must(result);
  for (const char* part : {"train                980 documents (98.00%)", "heldout               20 documents (2.00%)",
                           "bytes per token", "1 bad records skipped; the first:", "large.jsonl':1001", "MB/s on"}) {
    EXPECT_TRUE(contains(result.out, part)) << part << "\n" << result.out;
  }
  EXPECT_FALSE(contains(result.out, "\x1b")) << "control characters without a terminal";
}

// Which sequences a step reads depends on neither ranks nor interruptions, also where they come from several sources.
TEST_F(Data, PrepareTellsThatNothingWasHeldOut) {
  std::ofstream(path("one.txt")) << "one document\n";
  for (const char* holdout : {"5%", "0"}) {
    const CommandResult result =
        run_fsdp("prepare " + path("one.txt") + " -o " + path("one") + " --overwrite --holdout " + holdout);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(contains(result.out, "prepare: nothing was held out: 1 document(s) are few for that share."),
              std::string(holdout) == "5%")
        << result.out;
  }
}

TEST_F(Data, MixturesAreReadExactlyOnceByAnyNumberOfRanks) {
  prepare_other("second", "--holdout 0");
  const std::string sets = path("data") + ":0.7," + path("second") + ":0.3";
  const std::string options =
      mixture(sets) + "--train.steps=12 --checkpoint.every_steps=5 --resume=auto --output.folder=";
  const CommandResult whole = launch_fsdp(2, options + path("whole"));
  must(whole);
  EXPECT_TRUE(contains(whole.out, "mixture: 70% of data (")) << whole.out;
  EXPECT_TRUE(contains(whole.out, "% full, ")) << whole.out;
  const CommandResult killed = launch_fsdp(2, options + path("killed"), {"FSDP_FAULT=kill@step.backward:hit=8"});
  EXPECT_NE(killed.exit_code, 0);
  must(launch_fsdp(2, options + path("killed")));
  EXPECT_EQ(read_file(path("killed") + "/ledger.jsonl"), read_file(path("whole") + "/ledger.jsonl"));
  must(run_fsdp(options + path("one")));
  std::ifstream one(path("one") + "/ledger.jsonl");
  std::ifstream two(path("whole") + "/ledger.jsonl");
  for (std::string a, b; std::getline(one, a) && std::getline(two, b);) {
    EXPECT_EQ(nlohmann::json::parse(a).at("batch"), nlohmann::json::parse(b).at("batch"));
    EXPECT_EQ(nlohmann::json::parse(a).at("position"), nlohmann::json::parse(b).at("position"));
  }
  // Other weights are other data.
  const std::string other = path("data") + ":0.6," + path("second") + ":0.4";
  expect_error(run_fsdp(mixture(other) + "--train.steps=14 --resume=auto --output.folder=" + path("one")), 3,
               "expected that of the checkpoint");
}

TEST_F(Data, NamesOfOthersDoNotSteerTheTerminal) {
  prepare_other("odd");
  const fs::path manifest = path("odd") + "/dataset.json";
  nlohmann::json json = nlohmann::json::parse(read_file(manifest));
  json["tokenizer"] = "\x1b]0;mine\x07";
  std::ofstream(manifest, std::ios::binary) << json.dump();
  const CommandResult inspected = run_fsdp("inspect " + path("odd"));
  must(inspected);
  EXPECT_TRUE(contains(inspected.out, "\\x1b]0;mine\\x07")) << inspected.out;
  EXPECT_FALSE(contains(inspected.out, "\x1b")) << inspected.out;
  const CommandResult trained = run_fsdp(mixture(path("odd")));
  EXPECT_FALSE(contains(trained.out + trained.err, "\x1b")) << trained.out << trained.err;
  const CommandResult unknown = run_command({FSDP_BINARY, "\x1b[2J"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(contains(unknown.err, "\\x1b[2J")) << unknown.err;
}

TEST_F(Data, MixturesAsAList) {
  prepare_other("second");
  replace_in(path("run.toml"), "path = \"" + path("data") + "\"",
             "path = [\"" + path("data") + ":3\", \"" + path("second") + ":1\"]");
  const CommandResult result = run_fsdp(train());
  must(result);
  EXPECT_TRUE(contains(result.out, "mixture: 75% of data (")) << result.out;
}

TEST_F(Data, OnlyAnswersOfConversationsAreLearned) {
  std::ofstream file(path("chat.jsonl"));
  for (int i = 0; i < 400; ++i) {
    const std::string number = std::to_string(i);
    file << nlohmann::json{{"prompt", "what comes after " + number + "?"}, {"completion", std::to_string(i + 1)}}
         << "\n";
  }
  file.close();
  const CommandResult prepared = run_fsdp("prepare " + path("chat.jsonl") + " --chat plain -o " + path("chat"));
  must(prepared);
  EXPECT_TRUE(contains(prepared.out, "of answers")) << prepared.out;
  const CommandResult result = run_fsdp(mixture(path("chat")));
  must(result);
  const size_t at = result.out.find("% predicted");
  ASSERT_NE(at, std::string::npos) << result.out;
  EXPECT_LT(std::stod(result.out.substr(at - 5, 5)), 20) << result.out;  // 3 digits and the end of some 24 bytes
  expect_error(run_fsdp("prepare " + path("chat.jsonl") + " --chat elvish -o " + path("x")), 2, "--chat: got elvish");
  fs::path mask;
  for (const auto& entry : fs::directory_iterator(path("chat"))) {
    if (entry.path().extension() == ".msk") mask = entry.path();
  }
  fs::resize_file(mask, fs::file_size(mask) - 1);
  expect_error(run_fsdp(mixture(path("chat")) + "--output.folder=" + path("new")), 3, mask.filename());
}

TEST_F(Data, MistakesInMixtures) {
  const std::string a = path("data");
  expect_error(run_fsdp(mixture(a + ":0.5," + path("nothing") + ":0.5")), 3, "nothing");
  expect_error(run_fsdp(mixture(a + ":-1," + a + "2:1")), 2, "no positive number");
  expect_error(run_fsdp(mixture(a + ":1," + a + ":1")), 2, "occurs twice");
  prepare_other("second");
  replace_in(path("second") + "/dataset.json", "\"vocab_size\": 259", "\"vocab_size\": 300");
  expect_error(run_fsdp(mixture(a + "," + path("second"))), 2, "with one tokenizer");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Data, ASplitThatNoDataSetHasIsRefused) {
  prepare_other("second", "--holdout 0");
  const std::string none = path("second");
  expect_error(run_fsdp(train("--data.heldout_split=valid")), 2,
               "data.heldout_split: got 'valid', expected a split of the data: heldout, train.");
  expect_error(run_fsdp(mixture(none) + "--train.eval_every=2"), 2,
               "got 'heldout' with train.eval_every = 2, expected a split of the data: train.");
  const std::string sets = path("data") + ":1," + none + ":1 --train.steps=2 --train.warmup_steps=0 ";
  expect_error(run_fsdp(mixture(sets) + "--data.heldout_split=valid --train.eval_every=2"), 2, "heldout, train.");
  EXPECT_FALSE(fs::exists(path("out")));
  // Nothing is asked for, of nothing, or of those that have it.
  for (const std::string& more : {mixture(none), mixture(none) + "--data.heldout_split= --train.eval_every=2"}) {
    const CommandResult result = run_fsdp(
        more + " --train.steps=2 --train.warmup_steps=0 --output.overwrite=replace --output.folder=" + path("none"));
    must(result);
    EXPECT_TRUE(contains(result.out, "held out: nothing")) << result.out;
  }
  const CommandResult some = run_fsdp(mixture(sets) + "--train.eval_every=2");
  must(some);
  EXPECT_TRUE(contains(some.out, " tokens (none of second); mixture: ")) << some.out;
  EXPECT_TRUE(contains(some.out, "held out after step 2")) << some.out;
}

TEST_F(Data, DataThatDoesNotFitTheModel) {
  must(run_fsdp(train("--output.folder=" + path("first"))));
  const std::string load = "--model.path=" + path("first") + "/model ";
  replace_in(path("first") + "/model/config.json", "\"max_position_embeddings\": 2048",
             "\"max_position_embeddings\": 16");
  expect_error(run_fsdp(train(load)), 2, "data.sequence_length: got 32, expected at most 16");
  fs::remove_all(path("data") + "/tokenizer");
  expect_error(run_fsdp(train()), 3, "got no folder tokenizer");
}

TEST_F(Data, SplitsThatAreEmptyOrDamaged) {
  const std::string manifest = path("data") + "/dataset.json";
  const std::string good = read_file(manifest);
  std::string shard;
  for (const auto& entry : fs::directory_iterator(path("data"))) {
    if (entry.path().filename().string().rfind("train", 0) == 0 && entry.path().extension() == ".bin") {
      shard = entry.path();
    }
  }
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(66);
  file.write("\xFF\x7F", 2);
  file.close();
  expect_error(run_fsdp(train()), 3, "got XXH3-64");
  const CommandResult unread = run_fsdp(train("--check.data=never --train.steps=100"));
  expect_error(unread, 3, "got token id 32767 at offset 66, expected less than vocab_size 259");
  nlohmann::json json = nlohmann::json::parse(good);
  json["splits"]["train"] = nlohmann::json::array();
  std::ofstream(manifest) << json.dump();
  expect_error(run_fsdp(train("--output.folder=" + path("new"))), 3, "split train holds 0 tokens");
}

// With a real tokenizer, where there is one.
TEST_F(Data, TheTokenizerGoesWithTheDataAndTheModel) {
  const fs::path tokenizers = fs::path(FSDP_FIXTURES_DIR) / "tokenizers";
  if (!fs::exists(tokenizers / "gpt2/tokenizer.json")) {
    GTEST_LOG_(INFO) << "no tokenizers in " << tokenizers << ": nothing to compare with";
    return;
  }
  const std::string gpt2 = tokenizers / "gpt2";
  must(run_fsdp("prepare " + path("text") + " --holdout 3 --tokenizer " + gpt2 + " -o " + path("real")));
  must(run_fsdp(mixture(path("real")) + "--checkpoint.every_steps=6"));
  must(run_fsdp("export " + path("out") + "/checkpoints/step-6 -o " + path("exported")));
  EXPECT_EQ(read_file(path("exported") + "/tokenizer.json"), read_file(gpt2 + "/tokenizer.json"));
  EXPECT_EQ(read_file(path("out") + "/model/tokenizer.json"), read_file(gpt2 + "/tokenizer.json"));
  EXPECT_FALSE(fs::exists(path("out") + "/model/fsdp_tokenizer.json"));
  // The model is that of another tokenizer than the data.
  const std::string other = tokenizers / "bytelevel-llama3";
  must(run_fsdp("prepare " + path("text") + " --holdout 3 --tokenizer " + other + " -o " + path("others")));
  const CommandResult mixed =
      run_fsdp(mixture(path("others")) + "--model.path=" + path("out") + "/model --output.folder=" + path("new"));
  EXPECT_EQ(mixed.exit_code, 2) << mixed.err;
  EXPECT_TRUE(contains(mixed.err, "vocabulary")) << mixed.err;
  expect_error(run_fsdp("prepare " + path("text") + " --tokenizer " + path("text") + " -o " + path("x")), 4, "text");
}

}  // namespace
}  // namespace fsdp::app
