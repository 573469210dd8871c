// The loop of `fsdp train`: its schedule, what it does about spikes, requests by files and keys, samples.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/app/launch/launch_script.h"
#include "tests/app/train/loop_fixture.h"
#include "train/config/lr_schedule.h"

namespace fsdp::app {
namespace {

TEST_F(Loop, ScheduleOverTokens) {
  // 256 tokens per step: 2 steps of warm-up, 10 in all.
  const CommandResult result =
      launch_fsdp(2, run("wsd",
                         "--train.steps=0 --train.max_tokens=2500 --train.warmup_tokens=300 --train.schedule=wsd "
                         "--train.decay_steps=4"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "10 steps, 2 of warm-up, then 0.003 to 0.0003 in the last 4 by 1-sqrt"))
      << result.out;
  const Lines lines = ledger("wsd");
  ASSERT_EQ(lines.size(), 10u);
  const train::LrSchedule schedule{.lr = 3e-3,
                                   .min_lr_ratio = 0.1,
                                   .warmup_steps = 2,
                                   .steps = 10,
                                   .shape = train::LrSchedule::Shape::kWsd,
                                   .decay_steps = 4};
  for (size_t step = 0; step < lines.size(); ++step)
    EXPECT_EQ(number(lines[step]["lr"]), schedule.at(static_cast<int64_t>(step))) << step;
}

TEST_F(Loop, ScheduleIsKeptAndChangesAreTold) {
  const std::string options = "--train.steps=8 --train.schedule=linear ";
  ASSERT_EQ(run_fsdp(run("whole", options)).exit_code, 0);
  ASSERT_EQ(run_fsdp(run("resumed", options), {"FSDP_FAULT=term@step.end:hit=3"}).exit_code, 75);
  std::filesystem::copy(path("resumed"), path("changed"), std::filesystem::copy_options::recursive);
  const CommandResult same = run_fsdp(run("resumed", options));
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_FALSE(contains(same.out, " was ")) << same.out;
  expect_same("resumed", "whole");
  const CommandResult changed = run_fsdp(run("changed", "--train.steps=12 --train.schedule=constant"));
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_TRUE(contains(changed.out, "checkpoint: train.steps was 8, is 12\n")) << changed.out;
  EXPECT_TRUE(contains(changed.out, "checkpoint: train.schedule was \"linear\", is \"constant\"\n")) << changed.out;
  EXPECT_EQ(number(ledger("changed").back()["lr"]), 3e-3);
}

class Spikes : public Loop {
 protected:
  static constexpr int kBad = 40;  // the step that is spoilt
  std::string spiky(const std::string& folder, const std::string& policy, const std::string& more = "") const {
    return run(folder,
               "--train.steps=50 --train.batch_sequences=12 --train.spike_window=12 --train.spike_threshold=15 "
               "--checkpoint.every_steps=10 --train.on_spike=" +
                   policy + " " + more);
  }
  // Rank 0 reads nonsense in these computations.
  static std::vector<std::string> nonsense(const std::vector<int>& hits) {
    std::string faults = "FSDP_FAULT=";
    for (const int hit : hits) faults += "inject@value.targets:hit=" + std::to_string(hit) + ";";
    faults.pop_back();
    return {faults};
  }
};

TEST_F(Spikes, AreToldAndKept) {
  const CommandResult quiet = launch_fsdp(2, spiky("quiet", "warn"));
  EXPECT_FALSE(contains(quiet.out, "spike")) << quiet.out;
  const CommandResult result = launch_fsdp(2, spiky("warned", "warn"), nonsense({kBad}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "train: step 40 is a spike: loss ")) << result.out;
  EXPECT_FALSE(ledger("warned").at(kBad - 1).contains("skipped"));
  EXPECT_NE(ledger("warned").back()["loss"], ledger("quiet").back()["loss"]) << "the batch counted";
  const CommandResult off = launch_fsdp(2, spiky("off", "off"), nonsense({kBad}));
  EXPECT_FALSE(contains(off.out, "spike")) << off.out;
  expect_same("off", "warned");
}

TEST_F(Spikes, OfAPassingErrorLeaveNoTrace) {
  ASSERT_EQ(launch_fsdp(2, spiky("quiet", "skip")).exit_code, 0);
  const CommandResult result = launch_fsdp(2, spiky("once", "skip"), nonsense({kBad}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "step 40 was computed wrongly once and then rightly")) << result.out;
  expect_same("once", "quiet");
}

// The skipped step is as if its numbers had not been finite: a path that other tests hold against the truth.
TEST_F(Spikes, AreSkipped) {
  const CommandResult skipped = launch_fsdp(2, spiky("skipped", "skip"), nonsense({kBad, kBad + 1}));
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_TRUE(contains(skipped.out, "train: step 40 is a spike and skipped: loss ")) << skipped.out;
  const CommandResult other = launch_fsdp(2, spiky("nonfinite", "off", "--train.on_nonfinite=skip"),
                                          {"FSDP_FAULT=inject@value.grad:hit=40;inject@value.grad:hit=41"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  const Lines actual = ledger("skipped"), expected = ledger("nonfinite");
  ASSERT_EQ(actual.size(), 50u);
  EXPECT_TRUE(actual[kBad - 1].value("skipped", false));
  for (size_t step = kBad; step < actual.size(); ++step) EXPECT_EQ(actual[step], expected.at(step));
  EXPECT_TRUE(weights("skipped") == weights("nonfinite"));
}

TEST_F(Spikes, AreSeenAgainstTheStepsBeforeARestart) {
  const CommandResult whole = launch_fsdp(2, spiky("whole", "skip"), nonsense({kBad, kBad + 1}));
  const std::string line = whole.out.substr(whole.out.find("train: step 40 is a spike"));
  // Asked at the end of step 35, it stops after step 36.
  ASSERT_EQ(launch_fsdp(2, spiky("parts", "skip"), {"FSDP_FAULT=term@step.end:hit=35"}).exit_code, 75);
  std::filesystem::copy(path("parts"), path("elastic"), std::filesystem::copy_options::recursive);
  const CommandResult resumed = launch_fsdp(2, spiky("parts", "skip"), nonsense({4, 5}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.out, line.substr(0, line.find('\n') + 1))) << resumed.out << "expected " << line;
  expect_same("parts", "whole");
  const CommandResult alone = launch_fsdp(1, spiky("elastic", "skip"), nonsense({4, 5}));
  EXPECT_TRUE(contains(alone.out, "train: step 40 is a spike and skipped: loss ")) << alone.out;
}

TEST_F(Spikes, AreRolledBack) {
  const CommandResult result = launch_fsdp(2, spiky("back", "rollback"), nonsense({kBad, kBad + 1}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "train: step 40 was a spike (loss ")) << result.out;
  EXPECT_TRUE(contains(result.out, "back to step 30, without the data in between")) << result.out;
  const Lines lines = ledger("back");
  ASSERT_EQ(lines.size(), 50u);
  EXPECT_EQ(lines[29]["position"], 29 * 12);
  EXPECT_EQ(lines[30]["position"], 40 * 12) << "goes on after the data of step 40";
}

TEST_F(Spikes, AreSkippedWhereThereIsNoWayBack) {
  const CommandResult result =
      launch_fsdp(2, spiky("early", "rollback", "--checkpoint.every_steps=45"), nonsense({kBad, kBad + 1}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "train: step 40 is a spike and skipped")) << result.out;
}

TEST_F(Loop, NumbersGoWhereTheyAreAskedFor) {
  const CommandResult result = launch_fsdp(
      2, run("a", "--check.stragglers_every=2 --output.tensorboard=true --output.prometheus=" + path("fsdp.prom") +
                      " --sample.every_steps=3 --sample.prompts=x"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* file : {"metrics", "ledger", "events", "samples"}) {
    const Lines lines = read_lines(path("a/") + file + ".jsonl");
    EXPECT_FALSE(lines.empty()) << file;
    for (const auto& line : lines) EXPECT_EQ(line.at("schema"), 1) << file << line;
  }
  for (const auto& line : read_lines(path("a/metrics.jsonl"))) {
    if (!line.contains("loss")) continue;
    // Ranks compare after every second step.
    ASSERT_EQ(line.contains("slowest_rank"), line["step"].get<int>() > 1) << line;
    if (!line.contains("slowest_rank")) continue;
    EXPECT_LE(line["slowest_rank"]["rank"], 1);
    EXPECT_GE(line["slowest_rank"]["excess"], 0);
  }
  EXPECT_TRUE(contains(read_file(path("fsdp.prom")), "\nfsdp_step{run=\"" + path("a") + "\"} 6\n"));
  EXPECT_TRUE(contains(read_file(path("fsdp.prom")), "\nfsdp_heldout_loss{run="));
  EXPECT_FALSE(std::filesystem::is_empty(path("a/tensorboard")));
}

TEST_F(Loop, FileAsksForACheckpoint) {
  ask("saved", "SAVE");
  const CommandResult result = launch_fsdp(2, run("saved"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "checkpoint: committed step 1 ")) << result.out;
  EXPECT_FALSE(std::filesystem::exists(path("saved") + "/SAVE"));
  EXPECT_TRUE(std::filesystem::exists(path("saved") + "/checkpoints/step-1/manifest.json"));
  EXPECT_EQ(ledger("saved").size(), 6u) << "the run went on";
}

TEST_F(Loop, RequestStaysUntilItsCheckpointIsThere) {
  ask("full", "SAVE");
  const CommandResult result =
      launch_fsdp(2, run("full", "--checkpoint.async=false"), {"FSDP_FAULT=error=ENOSPC@file.write:rank=1:hit=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "save failed: ")) << result.out;
  EXPECT_TRUE(contains(result.out, "checkpoint: committed step 2 ")) << result.out;
  EXPECT_FALSE(std::filesystem::exists(path("full") + "/SAVE"));
}

TEST_F(Loop, FileAsksForAStop) {
  ASSERT_EQ(launch_fsdp(2, run("whole")).exit_code, 0);
  ask("stopped", "STOP");
  const CommandResult stopped = launch_fsdp(2, run("stopped"));
  EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
  EXPECT_TRUE(contains(stopped.out, "asked to stop by the file STOP; saved step 1; start again with --resume=auto"))
      << stopped.out;
  EXPECT_FALSE(std::filesystem::exists(path("stopped") + "/STOP")) << "obeyed requests are used up";
  EXPECT_EQ(launch_fsdp(2, run("stopped")).exit_code, 0);
  expect_same("stopped", "whole");
}

// The third step never ends; the first request is answered, a later one ends it.
TEST_F(Loop, SecondInterruptEndsAtOnce) {
  const std::string ledger = path("slow") + "/ledger.jsonl";
  const std::string script = "FSDP_FAULT=delay=600000@step.begin:hit=3 " FSDP_BINARY " " + run("slow") +
                             " & pid=$!\nuntil [ \"$(cat " + ledger +
                             " 2>/dev/null | wc -l)\" -ge 2 ]; do sleep 0.05; done\n" +
                             "while kill -INT $pid 2>/dev/null; do sleep 0.2; done\nwait $pid";
  const CommandResult result = run_command({"/bin/sh", "-c", script});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(count(result.err, "fsdp: asked to stop: saving after this step"), 1) << result.err;
  EXPECT_LT(result.seconds, 60);
}

// oneDNN's product of fp32 matrices has its stack pointer in the heap: a handler that ran there would overwrite it.
TEST_F(Loop, SignalsDoNotReachThreadsThatCompute) {
  const std::string ledger = path("signals") + "/ledger.jsonl";
  const std::string wide = "--train.batch_sequences=128 --model.hidden_size=256 --model.layers=6 --model.ffn_size=768";
  const std::string script = FSDP_BINARY " " + run("signals", wide) + " & pid=$!\n" + wait_for(ledger) +
                             "for i in $(seq 300); do kill -USR1 $pid; sleep 0.001; done\nwait $pid";
  const CommandResult result = run_command({"/bin/sh", "-c", script});
  EXPECT_EQ(result.exit_code, 75) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "asked to stop by SIGUSR1; saved step")) << result.out;
}

TEST_F(Loop, SamplesDoNotDisturbTheTraining) {
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string options = std::string("--shard.precision=") + precision + " --checkpoint.every_steps=4 ";
    const std::string samples = "--sample.every_steps=2 --sample.max_tokens=12 --sample.prompts=line|";
    for (const char* folder : {"plain", "sampled", "parts"}) std::filesystem::remove_all(path(folder));
    ASSERT_EQ(launch_fsdp(2, run("plain", options)).exit_code, 0);
    const CommandResult result = launch_fsdp(2, run("sampled", options + samples));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_same("sampled", "plain");
    const Lines lines = read_lines(path("sampled") + "/samples.jsonl");
    ASSERT_EQ(lines.size(), 6u) << "two prompts after steps 2, 4, 6";
    EXPECT_EQ(lines[2]["step"], 4);
    EXPECT_EQ(lines[2]["prompt"], "line");
    EXPECT_EQ(lines[3]["prompt"], "");
    EXPECT_TRUE(contains(result.out, "sample: after step 4: line")) << result.out;
    // Stopped and continued, the same samples: none is lost, none comes twice.
    ASSERT_EQ(launch_fsdp(2, run("parts", options + samples), {"FSDP_FAULT=kill@step.begin:hit=6"}).exit_code, 137);
    ASSERT_EQ(launch_fsdp(2, run("parts", options + samples)).exit_code, 0);
    EXPECT_EQ(read_lines(path("parts") + "/samples.jsonl"), lines);
  }
}

TEST_F(Loop, DeterministicWithSeveralThreads) {
  for (const char* folder : {"first", "second"}) {
    const CommandResult result =
        run_command({"/bin/sh", "-c",
                     "OMP_NUM_THREADS=3 exec " FSDP_BINARY " " +
                         run(folder,
                             "--train.deterministic=true --train.microbatch_sequences=4 "
                             "--train.recompute=block --train.recompute_every=2 --data.sequence_length=128")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "x 3 thread(s)") && contains(result.out, "; deterministic\n")) << result.out;
  }
  expect_same("first", "second");
}

// The batch grows from 4 to 8 sequences, and these from 10 tokens to 32.
TEST_F(Loop, WarmUpsOfBatchAndSequences) {
  const std::string growing =
      "--train.steps=20 --train.batch_warmup_sequences=4 --train.batch_warmup_steps=5 --data.sequence_warmup_steps=6 "
      "--data.sequence_warmup_length=10 --train.microbatch_sequences=2 --train.max_tokens=1500 ";
  ASSERT_EQ(launch_fsdp(2, run("whole", growing)).exit_code, 0);
  const Lines lines = ledger("whole");
  ASSERT_EQ(lines.size(), 9u) << "5 of 128 tokens, 4 of 256";
  int64_t position = 0;
  for (size_t step = 0; step < lines.size(); ++step) {
    const int64_t sequences = step < 5 ? 4 : 8;
    EXPECT_EQ(lines[step]["sequences"], sequences);
    EXPECT_EQ(lines[step]["position"], position);
    position += sequences;
    EXPECT_EQ(read_lines(path("whole") + "/metrics.jsonl").at(step).at("tokens"), 32 * position);
  }
  // Stopped within, on the same ranks and on others.
  ASSERT_EQ(launch_fsdp(2, run("parts", growing), {"FSDP_FAULT=term@step.end:hit=3"}).exit_code, 75);
  std::filesystem::copy(path("parts"), path("elastic"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(launch_fsdp(2, run("parts", growing)).exit_code, 0);
  expect_same("parts", "whole");
  ASSERT_EQ(launch_fsdp(1, run("elastic", growing + "--train.microbatch_sequences=0")).exit_code, 0);
  const Lines elastic = ledger("elastic");
  ASSERT_EQ(elastic.size(), lines.size());
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(elastic[step]["batch"], lines[step]["batch"]);
    EXPECT_NEAR(number(elastic[step]["loss"]), number(lines[step]["loss"]), 1e-5 * number(lines[step]["loss"]));
  }
  // Pieces know nothing of each other.
  ASSERT_EQ(launch_fsdp(2, run("uncut", growing + "--data.sequence_warmup_steps=0 --data.sequence_warmup_length=0"))
                .exit_code,
            0);
  EXPECT_EQ(ledger("uncut")[0]["batch"], lines[0]["batch"]);
  EXPECT_NE(ledger("uncut")[0]["loss"], lines[0]["loss"]);
  const CommandResult refused = launch_fsdp(3, run("refused", growing + "--train.batch_sequences=12 "));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(contains(refused.err, "train.batch_warmup_sequences: got 4, expected a multiple of 6")) << refused.err;
}

// Decays of several lengths from checkpoints of one run at a constant rate, each the run that had its length from the
// beginning.
TEST_F(Loop, BranchesShareTheirStem) {
  const std::string stem = "--train.schedule=constant --train.steps=10 --checkpoint.every_steps=4 ";
  ASSERT_EQ(launch_fsdp(2, run("stem", stem + "--checkpoint.keep_last=0")).exit_code, 0);
  struct Branch {
    const char* name;
    int from;
    std::string keys;
  };
  for (const Branch& branch : {Branch{"short", 4, "--train.schedule=wsd --train.steps=7 --train.decay_steps=3 "},
                               Branch{"long", 8, "--train.schedule=wsd --train.steps=12 --train.decay_steps=4 "}}) {
    const std::string whole = std::string(branch.name) + "-whole";
    const std::string from = path("stem") + "/checkpoints/step-" + std::to_string(branch.from);
    ASSERT_EQ(launch_fsdp(2, run(whole, branch.keys)).exit_code, 0);
    const CommandResult result = launch_fsdp(2, run(branch.name, branch.keys + "--resume=" + from));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(contains(result.out, "jumps")) << result.out;
    const Lines expected = ledger(whole), trunk = ledger("stem"), grown = ledger(branch.name);
    const auto at = static_cast<size_t>(branch.from);
    ASSERT_EQ(grown.size(), expected.size() - at);
    for (size_t step = 0; step < at; ++step) EXPECT_EQ(trunk[step], expected[step]);
    for (size_t step = at; step < expected.size(); ++step) EXPECT_EQ(grown[step - at], expected[step]);
    EXPECT_TRUE(weights(branch.name) == weights(whole));
  }
  // The decay of this one would have begun in the stem.
  const CommandResult late = launch_fsdp(2, run("late", "--train.schedule=wsd --train.steps=12 --train.decay_steps=8 " +
                                                            ("--resume=" + path("stem") + "/checkpoints/step-8")));
  ASSERT_EQ(late.exit_code, 0) << late.err;
  EXPECT_TRUE(contains(late.out, "checkpoint: the learning rate jumps: step 8 had 0.003, and would have had"))
      << late.out;
}

TEST_F(Loop, MetricsTellUtilisationAndDataWaits) {
  const CommandResult result = run_fsdp(run("measured", "--train.peak_tflops=0"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(run_fsdp(run("given", "--train.peak_tflops=1")).exit_code, 0);
  for (const auto& line : read_lines(path("measured") + "/metrics.jsonl")) {
    if (!line.contains("loss")) continue;
    EXPECT_GT(line.at("mfu").get<double>(), 0);
    EXPECT_LT(line.at("mfu").get<double>(), 1) << "more than a matrix multiplication";
    EXPECT_GE(line.at("data_ms").get<double>(), 0);
    EXPECT_LT(line.at("data_ms").get<double>(), line.at("step_ms").get<double>());
  }
  // 32 wide, 4 layers of 2 heads of 8 for keys and values, MLP 48, 259 words, sequences of 32.
  const double layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48;
  const double flops = 6 * (4 * layer + 259 * 32) + 6 * 4 * 33 * 32;
  const auto line = read_lines(path("given") + "/metrics.jsonl").at(3);
  EXPECT_NEAR(line.at("mfu").get<double>(), line.at("tokens_per_s").get<double>() * flops / 1e12, 1e-9);
}

// Against a peak of a million operations a second, which every step passes: the fastest step so far is the peak.
TEST_F(Loop, UtilisationIsNeverAboveOne) {
  const CommandResult result = run_fsdp(run("passed", "--train.peak_tflops=1e-6"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "above the 1e-06 of products")) << result.out;
  double fastest = 0;
  for (const auto& line : read_lines(path("passed") + "/metrics.jsonl")) {
    if (!line.contains("loss")) continue;
    const double speed = line.at("tokens_per_s").get<double>();
    fastest = std::max(fastest, speed);
    EXPECT_NEAR(line.at("mfu").get<double>(), speed / fastest, 1e-6);
  }
  EXPECT_GT(fastest, 0);
}

}  // namespace
}  // namespace fsdp::app
