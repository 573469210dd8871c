// The configurations of configs/: each says what it will hold, and every key of it is legal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/app/training_fixture.h"

namespace fsdp::app::recipes_test {
namespace {

namespace fs = std::filesystem;

struct Recipe {
  std::string file;
  std::string plan;  // arguments of `fsdp plan` beside the file: "--world 8 --node 8"
  double gib = 0;    // that a rank will hold at most, as the file says
};

// The rest of the comment line "# plan: ...", or nothing.
std::string comment(const std::string& file, const std::string& name) {
  std::ifstream stream(file);
  const std::string begin = "# " + name + ": ";
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind(begin, 0) == 0) return line.substr(begin.size());
  }
  return "";
}

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  for (const auto& entry : fs::directory_iterator(FSDP_CONFIGS_DIR)) {
    Recipe recipe{entry.path(), comment(entry.path(), "plan")};
    const std::string memory = comment(entry.path(), "memory");
    if (!memory.empty()) recipe.gib = std::stod(memory);
    all.push_back(recipe);
  }
  std::sort(all.begin(), all.end(), [](const Recipe& a, const Recipe& b) { return a.file < b.file; });
  return all;
}

std::string recipe_named(const std::string& name) { return std::string(FSDP_CONFIGS_DIR) + "/" + name + ".toml"; }

TEST(Recipes, SayWhatTheyWillHold) {
  int planned = 0;
  for (const Recipe& recipe : recipes()) {
    SCOPED_TRACE(recipe.file);
    EXPECT_EQ(run_fsdp("config check " + recipe.file).exit_code, 0);
    if (recipe.plan.empty()) continue;
    const CommandResult result = run_fsdp("plan " + recipe.file + " " + recipe.plan + " --json");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const double bytes = nlohmann::json::parse(result.out)["memory"]["peak"];
    const double gib = bytes / (1 << 30);
    EXPECT_NEAR(recipe.gib, gib, 0.006) << "the file should say # memory: " << std::round(100 * gib) / 100;
    ++planned;
  }
  EXPECT_GE(planned, 8);
}

class RecipesDry : public TrainingFixture {
 protected:
  // On the CPU of this machine and the few bytes of the fixture; all that a run checks before it builds its model.
  std::string dry(const std::string& name) const {
    return "train " + recipe_named(name) + " --dry-run --shard.device=cpu --data.path=" + path("data") +
           " --data.sequence_length=16 --train.batch_sequences=8 --output.folder=" + path("dry");
  }
};

TEST_F(RecipesDry, StartOnTheirRanks) {
  for (const auto& [name, ranks] :
       {std::pair{"smollm3-3b-1gpu", 1}, {"laptop", 2}, {"smollm3-3b-4gpu", 4}, {"llama-3.1-8b-8gpu", 8}}) {
    const CommandResult result = launch_fsdp(ranks, dry(name));
    EXPECT_EQ(result.exit_code, 0) << name << result.err;
    EXPECT_TRUE(contains(result.out, "at most")) << result.out;
  }
}

// A plan may be made without weights, a run may not be started.
TEST_F(RecipesDry, AdaptersNeedTheirBase) {
  ASSERT_EQ(run_fsdp(train("--train.steps=3")).exit_code, 0);
  const std::string adapters = dry("lora-llama-3.1-8b-1gpu");
  const CommandResult result = run_fsdp(adapters + " --model.path=" + path("out") + "/model");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const CommandResult without = run_fsdp(adapters + " --model.preset=smollm2-135m");
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_TRUE(contains(without.err, "expected a trained one")) << without.err;
}

}  // namespace
}  // namespace fsdp::app::recipes_test
