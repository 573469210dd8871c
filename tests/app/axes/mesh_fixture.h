// Runs of `fsdp train` with axes beside the data's, and the comparison with that of one rank.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/app/training_fixture.h"

namespace fsdp::app {

inline double number(const nlohmann::json& bits) {
  return std::bit_cast<double>(std::stoull(bits.get<std::string>(), nullptr, 16));
}

class MeshRuns : public TrainingFixture {
 protected:
  // Sizes that 4 ranks divide.
  std::string run(const std::string& folder, const std::string& more = "") const {
    return train(
        "--model.kv_heads=4 --model.vocab_size=264 --train.steps=10 --train.batch_sequences=12 --resume=auto "
        "--output.folder=" +
        path(folder) + " " + more);
  }
  Lines ledger(const std::string& folder) const { return read_lines(path(folder) + "/ledger.jsonl"); }

  // The run "elastic", killed or stopped on each mesh but the last, goes on on the next and is the run "one" in the
  // end.
  using Legs = std::vector<std::pair<int, std::string>>;
  void expect_run_over(const Legs& legs, const std::function<std::string(const std::string& mesh)>& command,
                       double bound = 1e-5) const {
    size_t leg = 0;
    for (const auto& [ranks, mesh] : legs) {
      const bool is_last = ++leg == legs.size();
      const std::string fault = is_last        ? "FSDP_FAULT="
                                : leg % 2 == 1 ? "FSDP_FAULT=kill@step.backward:hit=4"
                                               : "FSDP_FAULT=term@step.end:hit=3";
      const CommandResult result = launch_fsdp(ranks, command(mesh), {fault});
      ASSERT_EQ(result.exit_code, is_last ? 0 : leg % 2 == 1 ? 137 : 75) << mesh << result.out << result.err;
      EXPECT_TRUE(leg == 1 || contains(result.out, "checkpoint: resumed from")) << result.out;
    }
    expect_same_run("elastic", "one", bound);
    EXPECT_EQ(run_fsdp("verify " + path("elastic")).exit_code, 0);
  }

  // Read the same, computed the same but for the order of sums.
  void expect_same_run(const std::string& folder, const std::string& other, double bound = 1e-5) const {
    const Lines actual = ledger(folder), expected = ledger(other);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      for (const char* key : {"step", "position", "batch", "lr"})
        EXPECT_EQ(actual[step][key], expected[step][key]) << step;
      for (const char* key : {"loss", "grad_norm"}) {
        const double was = number(expected[step][key]);
        EXPECT_NEAR(number(actual[step][key]), was, (key[0] == 'l' ? 1 : 10) * bound * was) << key << " " << step;
      }
    }
    EXPECT_NEAR(heldout_loss(folder), heldout_loss(other), 2 * bound * heldout_loss(other));
  }
  // What a run said of this rank's weights, gradients, optimizer and buffers, and of those of other stages: no byte is
  // beside the plan.
  void expect_parts_as_planned(const std::string& output) const {
    for (const char* part : {"weights", "gradients", "optimizer", "buffers"}) {
      const std::regex line("plan: this rank holds .*" + std::string(part) + " [0-9.]+ [KM]?i?B \\(([^%]*) %\\)");
      std::smatch found;
      ASSERT_TRUE(std::regex_search(output, found, line)) << part << "\n" << output;
      EXPECT_EQ(std::stod(found[1]), 0) << part << "\n" << output;
    }
    if (contains(output, "of all stages are")) {
      EXPECT_TRUE(contains(output, "of all stages are 0 bytes from their plans")) << output;
    }
  }

  // A small Mixtral. The loss that balances experts is that of all ranks' tokens together.
  std::string run_experts(const std::string& folder, const std::string& more = "",
                          const std::string& family = "mixtral") const {
    return run(folder, "--model.family=" + family +
                           " --model.experts=8 --model.balance_loss=0.05 --model.init_std=0.1 " + more);
  }
  double heldout_loss(const std::string& folder) const {
    for (const auto& line : read_lines(path(folder) + "/metrics.jsonl")) {
      if (line.contains("heldout")) return line["heldout"]["loss"].get<double>();
    }
    ADD_FAILURE() << "no loss of held-out text in " << folder;
    return 0;
  }
};

}  // namespace fsdp::app
