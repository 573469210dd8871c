// Fine-tuning as a user does it: frozen parameters and adapters, stopped, resumed, merged, refused.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/base/json.h"
#include "io/hub/model_folder.h"
#include "io/safetensors/safetensors.h"
#include "tests/app/metrics.h"
#include "tests/app/tune/tuning_fixture.h"

namespace fsdp::app {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Tune : public TuningFixture {
 protected:
  std::string tune(const std::string& folder, const std::string& more) const {
    return train("--model.path=" + base() + " --output.folder=" + path(folder) + " " + more);
  }
  std::string lora(const std::string& folder, const std::string& more = "") const {
    return tune(folder, "--tune.method=lora --tune.lora_rank=4 --tune.lora_alpha=12 --train.lr=1e-2 " + more);
  }
  // What a model is worth on the held-out split.
  double worth(const std::string& model) {
    const std::string folder = path("worth");
    const CommandResult result =
        run_fsdp(train("--model.path=" + model + " --train.steps=1 --train.warmup_steps=1 --train.lr=0 " +
                       "--output.overwrite=replace --output.folder=" + folder));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return heldout(folder);
  }
};

TEST_F(Tune, AnAdapterIsWrittenAsPeftNamesItAndMerges) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string run = "lora_" + precision;
    const CommandResult result =
        launch_fsdp(2, lora(run, "--train.steps=20 --checkpoint.every_steps=20 --shard.precision=" + precision));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out,
                         "LoRA of rank 4, alpha 12 on q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                         "down_proj: "))
        << result.out;
    const std::string adapter = path(run) + "/model";
    const auto file = io::SafetensorsFile::open(adapter + "/adapter_model.safetensors");
    EXPECT_EQ(file.tensors().size(), 4u * 7u * 2u);
    ASSERT_NE(file.find("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), nullptr);
    ASSERT_NE(file.find("base_model.model.model.layers.3.mlp.down_proj.lora_B.weight"), nullptr);
    const nlohmann::json config = io::read_json_file(adapter + "/adapter_config.json");
    EXPECT_EQ(config["peft_type"], "LORA");
    EXPECT_EQ(config["r"], 4);
    EXPECT_EQ(config["lora_alpha"], 12);
    EXPECT_EQ(config["base_model_name_or_path"], base());

    const std::string merged = path("merged_" + precision);
    const CommandResult exported = run_fsdp("export " + adapter + " --merge " + base() + " -o " + merged);
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
    EXPECT_NEAR(worth(merged), heldout(path(run)), precision == "fp32" ? 1e-6 : 3e-3);
    EXPECT_LT(losses(path(run)).back(), losses(path(run)).front() - 0.02);
    EXPECT_TRUE(std::filesystem::exists(merged + "/fsdp_tokenizer.json"));
    EXPECT_EQ(run_fsdp("generate " + merged + " --prompt line --max-tokens 8").exit_code, 0);
    // A checkpoint has its base with it.
    const std::string whole = path("whole_" + precision);
    const CommandResult from_step = run_fsdp("export " + path(run) + "/checkpoints/step-20 --dtype fp32 -o " + whole);
    ASSERT_EQ(from_step.exit_code, 0) << from_step.err;
    EXPECT_NEAR(worth(whole), heldout(path(run)), precision == "fp32" ? 1e-6 : 3e-3);
    if (precision == "fp32") {
      EXPECT_TRUE(read_file(whole + "/model.safetensors") == read_file(merged + "/model.safetensors"));
    }
  }
}

// Megabytes for whoever serves it: neither moments nor the base.
TEST_F(Tune, AnAdapterIsExportedAloneFromACheckpoint) {
  for (const std::string content : {"adapter", "all"}) {
    const std::string run = "alone_" + content, out = path(run) + "_exported";
    ASSERT_EQ(launch_fsdp(2, lora(run, "--train.steps=8 --checkpoint.every_steps=8 --checkpoint.content=" + content))
                  .exit_code,
              0);
    const CommandResult result = run_fsdp("export " + path(run) + "/checkpoints/step-8 --adapter -o " + out);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    nlohmann::json config = io::read_json_file(out + "/adapter_config.json");
    nlohmann::json written = io::read_json_file(path(run) + "/model/adapter_config.json");
    for (nlohmann::json* each : {&config, &written}) {  // a set, for peft
      std::sort((*each)["target_modules"].begin(), (*each)["target_modules"].end());
    }
    EXPECT_EQ(config, written);
    const auto ours = io::SafetensorsFile::open(out + "/adapter_model.safetensors");
    const auto expected = io::SafetensorsFile::open(path(run) + "/model/adapter_model.safetensors");
    ASSERT_EQ(ours.tensors().size(), expected.tensors().size());
    for (const io::TensorEntry& entry : expected.tensors()) {
      const io::TensorEntry* same = ours.find(entry.name);
      ASSERT_TRUE(same != nullptr && same->shape == entry.shape) << entry.name;
      std::vector<float> was(static_cast<size_t>(entry.numel())), is(was.size());
      expected.read(entry, 0, entry.numel(), was.data());
      ours.read(*same, 0, entry.numel(), is.data());
      EXPECT_EQ(is, was) << entry.name;
    }
    const std::string first = read_file(out + "/adapter_model.safetensors");
    const std::string again = "export " + path(run) + "/checkpoints/step-8 --adapter -o " + out;
    EXPECT_EQ(run_fsdp(again).exit_code, 2);
    const CommandResult replaced = run_fsdp(again + " --overwrite");
    EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
    EXPECT_TRUE(read_file(out + "/adapter_model.safetensors") == first);
    // Neither the adapter nor what is made of it and its base takes the adapter's own place.
    for (const std::string& what : {std::string(" --adapter"), " --merge " + base()}) {
      const CommandResult same = run_fsdp("export " + out + what + " --overwrite -o " + out);
      EXPECT_EQ(same.exit_code, 2) << same.out;
      EXPECT_TRUE(contains(same.err, "the same folder as source and output")) << same.err;
    }
    EXPECT_TRUE(std::filesystem::exists(out + "/adapter_config.json"));
  }
  const CommandResult whole = run_fsdp("export " + base() + " --adapter -o " + path("none"));
  EXPECT_EQ(whole.exit_code, 2);
  EXPECT_TRUE(contains(whole.err, "expected a LoRA adapter")) << whole.err;
}

// A file has the norms of rows, a checkpoint what training has; both are the model that was trained.
TEST_F(Tune, DoraIsWrittenAsPeftNamesItAndMerges) {
  const std::string how = "--tune.lora_kind=dora --checkpoint.content=adapter --checkpoint.every_steps=20 ";
  const CommandResult result = launch_fsdp(2, lora("dora", how + "--train.steps=20"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "DoRA of rank 4, alpha 12 on q_proj, ")) << result.out;
  const std::string adapter = path("dora") + "/model", step = path("dora") + "/checkpoints/step-20";
  EXPECT_EQ(io::read_json_file(adapter + "/adapter_config.json")["use_dora"], true);
  const auto file = io::SafetensorsFile::open(adapter + "/adapter_model.safetensors");
  const std::string map = "model.layers.1.mlp.up_proj";
  const io::TensorEntry* norms = file.find("base_model.model." + map + ".lora_magnitude_vector");
  ASSERT_NE(norms, nullptr);
  ASSERT_EQ(norms->shape, (std::vector<int64_t>{48}));
  std::vector<float> lengths(48), weight(48 * 32);
  file.read(*norms, 0, 48, lengths.data());
  for (const std::string& from : {adapter, step}) {
    ASSERT_EQ(
        run_fsdp("export " + from + " --merge " + base() + " --dtype fp32 --overwrite -o " + path("merged")).exit_code,
        0);
    EXPECT_NEAR(worth(path("merged")), heldout(path("dora")), 1e-6) << from;
    io::ModelFolder::open(path("merged")).read(map + ".weight", 0, 48 * 32, weight.data());
    for (size_t row = 0; row < 48; ++row) {
      double squares = 0;
      for (size_t i = 0; i < 32; ++i) squares += std::pow(weight[row * 32 + i], 2);
      EXPECT_NEAR(std::sqrt(squares), lengths[row], 1e-5) << row;
    }
  }
  // Worked into a model in memory, whole and in shards; and trained further, from either.
  const std::string say = "generate " + base() + " --prompt line --max-tokens 12 --temperature 0 --json --adapter ";
  const CommandResult merged =
      run_fsdp("generate " + path("merged") + " --prompt line --max-tokens 12 --temperature 0 --json");
  for (const std::string& from : {adapter, step}) {
    EXPECT_EQ(run_fsdp(say + from).out, merged.out);
    EXPECT_EQ(run_fsdp("launch --no-prefix --nproc 2 -- " + say + from).out, merged.out);
    const std::string again =
        "--tune.lora_kind=dora --train.steps=2 --train.warmup_steps=1 --output.overwrite=replace ";
    const CommandResult further = launch_fsdp(2, lora("further", again + "--tune.lora_from=" + from));
    ASSERT_EQ(further.exit_code, 0) << further.err;
    EXPECT_LT(losses(path("further"))[0], losses(path("dora"))[0] - 0.01);
  }
  const CommandResult plain = run_fsdp(lora("plain", "--tune.lora_from=" + adapter));
  EXPECT_NE(plain.exit_code, 0);
  EXPECT_TRUE(contains(plain.err, "lora_kind")) << plain.err;
}

// The run's base is what singular values left of the base; its adapter is written for the base as it was.
TEST_F(Tune, PissaIsWrittenForTheWholeBase) {
  const std::string how = "--tune.lora_init=pissa --train.steps=20 --checkpoint.every_steps=20 ";
  const CommandResult result = launch_fsdp(2, lora("pissa", how));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "begun with the largest singular values: ")) << result.out;
  const std::string adapter = path("pissa") + "/model", step = path("pissa") + "/checkpoints/step-20";
  const nlohmann::json config = io::read_json_file(adapter + "/adapter_config.json");
  EXPECT_EQ(config["r"], 8);
  EXPECT_EQ(config["lora_alpha"], 24);
  EXPECT_EQ(config["init_lora_weights"], true);
  const std::string export_to = " --dtype fp32 --overwrite -o " + path("merged");
  for (const std::string& from : {adapter + " --merge " + base(), step}) {
    const CommandResult exported = run_fsdp("export " + from + export_to);
    ASSERT_EQ(exported.exit_code, 0) << exported.err;
    EXPECT_NEAR(worth(path("merged")), heldout(path("pissa")), 2e-6) << from;
  }
  // A checkpoint's factors are for no base but its own.
  for (const std::string& use : {"export " + step + " --merge " + base() + export_to,
                                 "generate " + base() + " --prompt line --max-tokens 2 --adapter " + step,
                                 lora("further", "--tune.lora_from=" + step)}) {
    const CommandResult refused = run_fsdp(use);
    EXPECT_NE(refused.exit_code, 0) << use;
    EXPECT_TRUE(contains(refused.err, "Pass the run's folder `model`")) << refused.err;
  }
  EXPECT_EQ(run_fsdp(lora("further", "--tune.lora_rank=8 --tune.lora_alpha=24 --tune.lora_from=" + adapter)).exit_code,
            0);
  // And what it trains is told from a run that began otherwise.
  const CommandResult other = run_fsdp(lora("pissa", "--train.steps=22 --resume=auto"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_TRUE(contains(other.err, "tune.lora_init")) << other.err;
}

// Rows of one batch with adapters of their own say what each says alone.
TEST_F(Tune, SeveralAdaptersAreServedByName) {
  ASSERT_EQ(run_fsdp(lora("first", "--train.steps=12 --train.lr=0.1")).exit_code, 0);
  ASSERT_EQ(run_fsdp(lora("second",
                          "--train.steps=12 --train.seed=9 --tune.lora_kind=dora --tune.lora_targets=q_proj,up_proj "
                          "--train.lr=5e-2"))
                .exit_code,
            0);
  const std::string named =
      " --adapter first=" + path("first") + "/model --adapter second=" + path("second") + "/model";
  std::ofstream lines(path("prompts.jsonl"));
  const std::vector<std::string> asked = {"first", "base", "second", "first", "", "second"};
  for (size_t i = 0; i < asked.size(); ++i) {
    nlohmann::json line = {{"prompt", "line-" + std::to_string(i * 7) + std::string(i, 'x')}};
    if (!asked[i].empty()) line["adapter"] = asked[i];
    lines << line.dump() << "\n";
  }
  lines.close();
  const auto texts = [](const std::string& out) {
    std::vector<std::string> values;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) values.push_back(nlohmann::json::parse(line).at("text"));
    return values;
  };
  const std::string how = "generate " + base() + " --max-tokens 16 --temperature 1 --json --precision ";
  for (const std::string kind : {"fp32", "bf16", "fp32 --base nf4", "fp32 --base nf4_all"}) {
    const std::string every = how + kind + named + " --use second --seed 3 --prompts-file " + path("prompts.jsonl");
    const CommandResult together = run_fsdp(every);
    ASSERT_EQ(together.exit_code, 0) << together.err;
    const std::vector<std::string> all = texts(together.out);
    EXPECT_EQ(run_fsdp(every + " --rows 1").out, together.out) << kind;
    std::set<std::string> different;
    for (size_t i = 0; i < asked.size(); ++i) {
      const std::string name = asked[i].empty() ? "second" : asked[i];
      const std::string prompt =
          " --prompt line-" + std::to_string(i * 7) + std::string(i, 'x') + " --seed " + std::to_string(3 + i);
      const std::string own = name == "base" ? "" : " --adapter " + name + "=" + path(name) + "/model --use " + name;
      EXPECT_EQ(texts(run_fsdp(how + kind + own + prompt).out), std::vector<std::string>{all[i]}) << kind << i;
      // Worked into the weights it is the same but for rounding.
      if (kind == "fp32" && name != "base") {
        const std::string merged = how + kind + " --adapter " + path(name) + "/model" + prompt;
        EXPECT_EQ(texts(run_fsdp(merged).out), std::vector<std::string>{all[i]}) << i;
      }
      different.insert(all[i]);
    }
    EXPECT_GE(different.size(), 3u) << ::testing::PrintToString(all);
    if (kind == "fp32") {
      EXPECT_EQ(run_fsdp("launch --no-prefix --nproc 2 -- " + every).out, together.out);
    }
  }
  const std::pair<std::string, const char*> mistakes[] = {
      {" --use third", "got 'third', expected one of base, first, second"},
      {" --adapter first=" + path("first") + "/model", "got the name 'first'"},
      {" --adapter " + path("first") + "/model", "expected NAME=FOLDER for each"},
  };
  for (const auto& [more, text] : mistakes) {
    const CommandResult result = run_fsdp(how + "fp32" + named + more);
    EXPECT_EQ(result.exit_code, 2) << more;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
  }
  std::ofstream(path("prompts.jsonl")) << R"({"prompt": "x", "adapter": "other"})"
                                       << "\n";
  const CommandResult unknown = run_fsdp(how + "fp32" + named + " --prompts-file " + path("prompts.jsonl"));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(contains(unknown.err, "expected one of base, first, second")) << unknown.err;
  EXPECT_TRUE(contains(unknown.err, "prompts.jsonl:1")) << unknown.err;
}

TEST_F(Tune, StoppedTuningGoesOnBitForBit) {
  struct Kind {
    const char* name;
    int ranks;
    std::string options;
    const char* weights;
  };
  const std::string method = "--tune.method=lora --tune.lora_rank=4 ";
  for (const Kind& kind :
       {Kind{"adapters", 2, method, "adapter_model.safetensors"},
        Kind{"DoRA, base in 4 bits, dropout", 2,
             method + "--tune.lora_kind=dora --tune.base=nf4 --tune.lora_dropout=0.2", "adapter_model.safetensors"},
        Kind{"PiSSA", 2, method + "--tune.lora_init=pissa", "adapter_model.safetensors"},
        Kind{"PiSSA, the rest in 4 bits, adapters alone in checkpoints", 2,
             method + "--tune.lora_init=pissa --tune.base=nf4 --checkpoint.content=adapter",
             "adapter_model.safetensors"},
        Kind{"adapters, dropout", 2, method + "--tune.lora_dropout=0.2", "adapter_model.safetensors"},
        Kind{"adapters, base in bf16", 2, method + "--shard.precision=bf16", "adapter_model.safetensors"},
        Kind{"adapters, HSDP", 4, method + "--shard.strategy=hybrid --shard.replicas=2", "adapter_model.safetensors"},
        Kind{"adapters alone in checkpoints", 2, method + "--checkpoint.content=adapter", "adapter_model.safetensors"},
        Kind{"state on a disk", 2, "--shard.offload=disk --shard.precision=bf16", "model.safetensors"},
        Kind{"adapters on a disk, base too", 2, method + "--shard.offload=disk", "adapter_model.safetensors"},
        Kind{"balanced batches", 2, "--data.balance=true", "model.safetensors"},
        Kind{"frozen blocks", 2, "--tune.frozen=model.embed_tokens.*,model.layers.[0-1].*", "model.safetensors"}}) {
    const std::string more =
        kind.options + " --train.steps=9 --checkpoint.every_steps=4 --resume=auto " + "--output.overwrite=replace";
    std::filesystem::remove_all(path("straight"));
    std::filesystem::remove_all(path("stopped"));
    const CommandResult straight = launch_fsdp(kind.ranks, tune("straight", more));
    ASSERT_EQ(straight.exit_code, 0) << kind.name << straight.err;
    const CommandResult stopped =
        launch_fsdp(kind.ranks, tune("stopped", more), {"FSDP_FAULT=term@step.end:rank=1:hit=5"});
    ASSERT_EQ(stopped.exit_code, 75) << kind.name << stopped.out << stopped.err;
    const CommandResult resumed = launch_fsdp(kind.ranks, tune("stopped", more));
    ASSERT_EQ(resumed.exit_code, 0) << kind.name << resumed.err;
    EXPECT_EQ(read_file(path("stopped") + "/ledger.jsonl"), read_file(path("straight") + "/ledger.jsonl")) << kind.name;
    const std::string file = std::string("/model/") + kind.weights;
    EXPECT_TRUE(read_file(path("stopped") + file) == read_file(path("straight") + file)) << kind.name;
  }
}

// Bytes of all files below a folder.
uint64_t bytes_below(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

TEST_F(Tune, CheckpointsOfAdaptersAlone) {
  const std::string more = "--train.steps=8 --checkpoint.every_steps=4 ";
  const CommandResult result = launch_fsdp(2, lora("small", more + "--checkpoint.content=adapter"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(launch_fsdp(2, lora("whole", more)).exit_code, 0);
  const std::string step = "/checkpoints/step-8";
  EXPECT_TRUE(read_file(path("small") + "/ledger.jsonl") == read_file(path("whole") + "/ledger.jsonl"));
  const uint64_t base_bytes = std::filesystem::file_size(base() + "/model.safetensors");
  EXPECT_LT(bytes_below(path("small") + step) + base_bytes, bytes_below(path("whole") + step) + base_bytes / 10);
  EXPECT_EQ(run_fsdp("verify " + path("small") + step).exit_code, 0);

  // Both merge to the same model.
  for (const std::string run : {"small", "whole"}) {
    const CommandResult merged =
        run_fsdp("export " + path(run) + step + " --merge " + base() + " -o " + path("merged_" + run));
    ASSERT_EQ(merged.exit_code, 0) << merged.err;
  }
  EXPECT_TRUE(read_file(path("merged_small") + "/model.safetensors") ==
              read_file(path("merged_whole") + "/model.safetensors"));

  // Each goes on from the other's, where the settings say so.
  const std::string on = "--train.steps=10 --train.warmup_steps=2 --output.overwrite=replace --resume=";
  EXPECT_EQ(run_fsdp(lora("on", "--checkpoint.content=adapter " + on + path("whole") + step)).exit_code, 0);
  const CommandResult without = run_fsdp(lora("on", on + path("small") + step));
  EXPECT_EQ(without.exit_code, 4);
  EXPECT_TRUE(contains(without.err, "adapters alone")) << without.err;

  ASSERT_EQ(run_fsdp(train("--train.steps=31 --output.folder=" + path("other"))).exit_code, 0);
  const CommandResult other = run_fsdp(train("--model.path=" + path("other") + "/model --output.folder=" + path("on") +
                                             " --tune.method=lora --tune.lora_rank=4 --checkpoint.content=adapter " +
                                             on + path("small") + step));
  EXPECT_EQ(other.exit_code, 4);
  EXPECT_TRUE(contains(other.err, "another base")) << other.err;
  const CommandResult full = run_fsdp(tune("on", "--checkpoint.content=adapter " + on + "never"));
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_TRUE(contains(full.err, "tune.method")) << full.err;
}

TEST_F(Tune, AModelSpeaksWithItsAdapter) {
  ASSERT_EQ(launch_fsdp(2, lora("spoken",
                                "--train.steps=20 --checkpoint.every_steps=20 --tune.lora_scale=root "
                                "--checkpoint.content=adapter"))
                .exit_code,
            0);
  const nlohmann::json config = io::read_json_file(path("spoken") + "/model/adapter_config.json");
  EXPECT_EQ(config["use_rslora"], true);
  ASSERT_EQ(run_fsdp("export " + path("spoken") + "/model --merge " + base() + " -o " + path("merged")).exit_code, 0);
  const std::string how = " --prompt line --temperature 0 --max-tokens 24";
  const CommandResult merged = run_fsdp("generate " + path("merged") + how);
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  for (const std::string adapter : {"/model", "/checkpoints/step-20"}) {
    const std::string command = "generate " + base() + how + " --adapter " + path("spoken") + adapter;
    const CommandResult one = run_fsdp(command), two = launch_fsdp(2, command);
    EXPECT_EQ(one.out, merged.out) << one.err;
    EXPECT_TRUE(contains(two.out, merged.out)) << two.out << two.err;
  }
  EXPECT_NE(run_fsdp("generate " + base() + how + " --adapter " + base()).exit_code, 0);
}

// What a disk holds is what memory would hold.
TEST_F(Tune, StateOnADiskTrainsTheSameModel) {
  const std::string more = "--train.microbatch_sequences=2 --train.steps=6 ";
  ASSERT_EQ(launch_fsdp(2, train(more + "--output.folder=" + path("memory"))).exit_code, 0);
  const CommandResult disk =
      launch_fsdp(2, train(more + "--shard.offload=disk --shard.offload_folder=" + path("fast/disk") +
                           " --output.folder=" + path("disk")));
  ASSERT_EQ(disk.exit_code, 0) << disk.err;
  EXPECT_EQ(read_file(path("disk") + "/ledger.jsonl"), read_file(path("memory") + "/ledger.jsonl"));
  EXPECT_TRUE(read_file(path("disk") + "/model/model.safetensors") ==
              read_file(path("memory") + "/model/model.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(path("fast/disk")));  // the files have no names
  const CommandResult nowhere = run_fsdp(train("--shard.offload=disk --shard.offload_folder=" + path("run.toml/x")));
  EXPECT_EQ(nowhere.exit_code, 7);
  EXPECT_TRUE(contains(nowhere.err, "shard.offload_folder")) << nowhere.err;
}

TEST_F(Tune, AnAdapterTrainsOn) {
  ASSERT_EQ(launch_fsdp(2, lora("first", "--train.steps=10")).exit_code, 0);
  const CommandResult second = launch_fsdp(
      3,
      lora("second", "--train.batch_sequences=9 --train.steps=1 --train.warmup_steps=1 --train.lr=0 --tune.lora_from=" +
                         path("first") + "/model"));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NEAR(heldout(path("second")), heldout(path("first")), 1e-6);
  const std::string file = "/model/adapter_model.safetensors";
  EXPECT_TRUE(read_file(path("second") + file) == read_file(path("first") + file));
  const CommandResult other =
      run_fsdp(lora("third", "--tune.lora_rank=5 --tune.lora_from=" + path("first") + "/model"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_TRUE(contains(other.err, "another rank, alpha, kind or other modules")) << other.err;
}

TEST_F(Tune, FrozenTensorsKeepTheirBits) {
  const CommandResult result =
      launch_fsdp(3, tune("frozen", "--train.batch_sequences=9 --tune.trained=model.layers.3.*,model.norm.*"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, " tensors are frozen: ")) << result.out;
  const io::ModelFolder before = io::ModelFolder::open(base()),
                        after = io::ModelFolder::open(path("frozen") + "/model");
  ASSERT_EQ(before.names(), after.names());
  for (const std::string& name : before.names()) {
    const int64_t numel = before.find(name)->entry->numel();
    std::vector<float> was(static_cast<size_t>(numel)), is(static_cast<size_t>(numel));
    before.read(name, 0, numel, was.data());
    after.read(name, 0, numel, is.data());
    const bool trains = name.rfind("model.layers.3.", 0) == 0 || name == "model.norm.weight";
    EXPECT_EQ(was != is, trains) << name;
  }
}

// Chats of which only the answers, long and short, are predicted: a step is the same however the batch is cut.
TEST_F(Tune, AnswersCountOnceHoweverTheyAreSpread) {
  std::ofstream chats(path("chats.jsonl"));
  for (int chat = 0; chat < 90; ++chat) {
    const std::string question(static_cast<size_t>(5 + 37 * chat % 60), static_cast<char>('a' + chat % 20));
    const std::string answer(static_cast<size_t>(1 + chat % 7 * (chat % 11)), static_cast<char>('A' + chat % 20));
    chats << nlohmann::json{{"prompt", question}, {"completion", answer}}.dump() << "\n";
  }
  chats.close();
  ASSERT_EQ(run_fsdp("prepare " + path("chats.jsonl") + " --chat plain --holdout 10% -o " + path("chats")).exit_code,
            0);
  struct Cut {
    int ranks;
    const char* micro;
  };
  std::vector<double> expected;
  for (const Cut& cut : {Cut{1, "0"}, Cut{1, "1"}, Cut{2, "2"}, Cut{4, "1"}}) {
    const std::string run = std::to_string(cut.ranks) + "x" + cut.micro;
    const CommandResult result = launch_fsdp(
        cut.ranks, lora(run, "--data.path=" + path("chats") + " --train.microbatch_sequences=" + cut.micro));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::vector<double> actual = losses(path(run));
    if (expected.empty()) expected = actual;
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(actual[step], expected[step], 1e-5 * expected[step]) << run << ", step " << step;
    }
  }
}

TEST_F(Tune, MistakesAreNamed) {
  const std::pair<std::string, const char*> mistakes[] = {
      {lora("x", "--tune.lora_targets=q_prj"), "got 'q_prj', expected all-linear, or some of q_proj, "},
      {lora("x", "--tune.frozen=model.norm.*"), "Leave them out"},
      {train("--tune.method=lora --output.folder=" + path("x")), "random weights"},
      {tune("x", "--tune.frozen=model.layer.0.*"), "near names: model.layers.0."},
      {tune("x", "--tune.frozen=*"), "expected at least one"},
      {tune("x", "--tune.lora_from=y"), "expected \"lora\""},
      {tune("x", "--tune.lora_kind=dora"), "tune.lora_kind: got dora with tune.method = \"full\""},
      {lora("x", "--tune.lora_rank=0"), "from 1 to 65536"},
      {"export " + base() + " --merge " + base() + " -o " + path("y"), "expected a LoRA adapter"},
  };
  for (const auto& [command, text] : mistakes) {
    const CommandResult result = run_fsdp(command);
    EXPECT_EQ(result.exit_code, 2) << command << result.err;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
  }
  ASSERT_EQ(run_fsdp(lora("run", "--train.steps=1 --train.warmup_steps=1")).exit_code, 0);
  const CommandResult alone = run_fsdp("export " + path("run") + "/model -o " + path("y"));
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_TRUE(contains(alone.err, "Pass --merge")) << alone.err;
  const CommandResult other = run_fsdp("export " + path("run") + "/model --merge " + FSDP_TEST_DATA_DIR +
                                       "/models/llama3-mini -o " + path("y"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_TRUE(contains(other.err, "[merge] ")) << other.err;
}

}  // namespace
}  // namespace fsdp::app
