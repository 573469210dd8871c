#include "train/config/option_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

namespace fsdp::train {
namespace {

TEST(OptionTable, EachMemberOfConfigHasOneOption) {
  Config config;
  std::set<const void*> places;
  for (const Option& option : option_table()) {
    std::visit([&](auto* place) { EXPECT_TRUE(places.insert(place).second) << option.name; }, option.slot(config));
    EXPECT_FALSE(option.help.empty()) << option.name;
  }
  // A new member without an option changes the size of its section.
  EXPECT_EQ(places.size(), 21u + 7u + 42u + 12u + 12u + 6u + 8u + 4u + 6u + 4u + 15u);
}

TEST(OptionTable, DefaultsAreLegal) {
  for (const Option& option : option_table()) {
    EXPECT_EQ(option.complaint(Config()), "") << option.name;
  }
}

TEST(OptionTable, NearestOption) {
  EXPECT_EQ(nearest_option("train.warmup"), "train.warmup_steps");
  EXPECT_EQ(nearest_option("model.hidden"), "model.hidden_size");
  EXPECT_EQ(nearest_option("train.LR"), "train.lr");
  EXPECT_EQ(nearest_option("sequence_length"), "data.sequence_length");
  EXPECT_EQ(nearest_option("shard.stratgy"), "shard.strategy");
  EXPECT_EQ(nearest_option("optimizer.blub"), "");
}

// docs/config.md holds the tables that `fsdp config --markdown` prints.
TEST(OptionTable, DocumentationIsUpToDate) {
  std::ifstream file(FSDP_SOURCE_DIR "/docs/config.md");
  ASSERT_TRUE(file.is_open());
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find(option_markdown()), std::string::npos)
      << "docs/config.md: replace its tables by the output of `bin/fsdp config --markdown`";
}

}  // namespace
}  // namespace fsdp::train
