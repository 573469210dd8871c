// The loop of `fsdp train`: its schedule, what it does about spikes, requests by files and keys, samples.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/app/launch_script.h"
#include "tests/app/training_fixture.h"
#include "train/config/lr_schedule.h"

namespace fsdp::app {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

double number(const nlohmann::json& bits) {
  return std::bit_cast<double>(std::stoull(bits.get<std::string>(), nullptr, 16));
}

class Loop : public TrainingFixture {
 protected:
  std::string run(const std::string& folder, const std::string& more = "") const {
    return train("--resume=auto --output.folder=" + path(folder) + " " + more);
  }
  Lines ledger(const std::string& folder) const { return read_lines(path(folder) + "/ledger.jsonl"); }
  std::string weights(const std::string& folder) const { return read_file(path(folder) + "/model/model.safetensors"); }
  void ask(const std::string& folder, const std::string& file) const {
    std::filesystem::create_directories(path(folder));
    std::ofstream(path(folder) + "/" + file) << "";
  }
  void expect_same(const std::string& folder, const std::string& other) const {
    EXPECT_EQ(read_file(path(folder) + "/ledger.jsonl"), read_file(path(other) + "/ledger.jsonl")) << folder;
    EXPECT_TRUE(weights(folder) == weights(other)) << folder << ": other weights than " << other;
  }
};

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

class Fp16 : public Loop {
 protected:
  std::string half(const std::string& folder, const std::string& more = "") const {
    return run(folder, "--shard.precision=fp16 " + more);
  }
};

TEST_F(Fp16, FollowsFp32) {
  const std::string steps = "--train.steps=40 ";
  ASSERT_EQ(launch_fsdp(2, run("wide", steps)).exit_code, 0);
  const Lines expected = ledger("wide");
  EXPECT_FALSE(expected.front().contains("loss_scale"));
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    const std::string folder = std::string("half_") + strategy;
    const CommandResult result = launch_fsdp(2, half(folder, steps + "--shard.strategy=" + strategy));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, " scale 65536 | ")) << result.out;
    const Lines actual = ledger(folder);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < actual.size(); ++step) {
      const double loss = number(expected[step]["loss"]);
      EXPECT_NEAR(number(actual[step]["loss"]), loss, 0.02 * loss) << strategy << ", step " << step;
      EXPECT_EQ(actual[step]["loss_scale"], 65536);
    }
    EXPECT_NEAR(number(actual.back()["grad_norm"]), number(expected.back()["grad_norm"]),
                0.1 * number(expected.back()["grad_norm"]));
  }
}

// A gradient that is not finite on one rank is no reason to compute again or to stop: the step is skipped on all and
// the scale halved, which checkpoints remember, also for another number of ranks.
TEST_F(Fp16, OverflowsAreSkippedAndTheScaleIsResumed) {
  const std::string overflow = "FSDP_FAULT=inject@value.grad:rank=1:hit=3";
  const std::string steps = "--train.steps=8 ";
  const CommandResult whole = launch_fsdp(2, half("whole", steps), {overflow});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(contains(whole.out, "step 3 skipped: gradients overflowed at loss scale 65536, which is 32768 now"))
      << whole.out;
  EXPECT_TRUE(contains(whole.out, " scale 32768 (1 skipped) | ")) << whole.out;
  const Lines lines = ledger("whole");
  ASSERT_EQ(lines.size(), 8u);
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step]["loss_scale"], step < 3 ? 65536 : 32768) << step;
    EXPECT_EQ(lines[step].value("skipped", false), step == 2) << step;
  }
  ASSERT_EQ(launch_fsdp(2, half("parts", steps), {overflow + ";term@step.end:hit=4"}).exit_code, 75);
  std::filesystem::copy(path("parts"), path("elastic"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(launch_fsdp(2, half("parts", steps)).exit_code, 0);
  expect_same("parts", "whole");
  const CommandResult alone = launch_fsdp(1, half("elastic", steps));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const Lines elastic = ledger("elastic");
  ASSERT_EQ(elastic.size(), 8u);
  for (size_t step = 3; step < elastic.size(); ++step) EXPECT_EQ(elastic[step]["loss_scale"], 32768) << step;
}

class Fp8 : public Loop {
 protected:
  std::string quarter(const std::string& folder, const std::string& more = "") const {
    return run(folder, kSizes + "--shard.precision=fp8 --shard.fp8_keep=first " + more);
  }
  CommandResult refused(const std::string& more) const { return launch_fsdp(1, quarter("refused", more)); }

  inline static const std::string kSizes = "--train.steps=40 --model.hidden_size=64 --model.ffn_size=128 ";
};

TEST_F(Fp8, FollowsBf16) {
  ASSERT_EQ(launch_fsdp(2, run("bf16", kSizes + "--shard.precision=bf16")).exit_code, 0);
  const Lines expected = ledger("bf16");
  for (const std::string recipe : {"tensorwise", "rowwise", "mxfp8"}) {
    const CommandResult result = launch_fsdp(2, quarter(recipe, "--shard.fp8_recipe=" + recipe));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Lines actual = ledger(recipe);
    ASSERT_EQ(actual.size(), expected.size());
    bool differs = false;
    for (size_t step = 0; step < actual.size(); ++step) {
      const double loss = number(expected[step]["loss"]);
      EXPECT_NEAR(number(actual[step]["loss"]), loss, 0.02 * loss) << recipe << ", step " << step;
      differs = differs || actual[step]["loss"] != expected[step]["loss"];
    }
    EXPECT_TRUE(differs) << recipe;
  }
}

// Scales are made anew at each product, so that nothing of fp8 is to be saved.
TEST_F(Fp8, GoesOnFromACheckpoint) {
  ASSERT_EQ(launch_fsdp(2, quarter("whole")).exit_code, 0);
  ASSERT_EQ(launch_fsdp(2, quarter("parts"), {"FSDP_FAULT=term@step.end:hit=20"}).exit_code, 75);
  ASSERT_EQ(launch_fsdp(2, quarter("parts")).exit_code, 0);
  expect_same("parts", "whole");
}

TEST_F(Fp8, RefusesWhatItCannotDo) {
  for (const auto& [options, text] : std::vector<std::pair<std::string, std::string>>{
           {"--shard.fp8_recipe=blockwise", "got blockwise, which needs multiples of 128"},
           {"--shard.fp8_keep=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            "keeps every linear map of the 4 blocks in bf16"},
           {"--shard.fp8_keep=up", "got up, expected some of q_proj"},
           {"--shard.precision=bf16", "got them with shard.precision = \"bf16\", expected \"fp8\""}}) {
    const CommandResult result = refused(options);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
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
