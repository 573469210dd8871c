// Runs of `fsdp train` whose ledgers and weights are compared.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/app/training_fixture.h"

namespace fsdp::app {

class Loop : public TrainingFixture {
 protected:
  static std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  static double number(const nlohmann::json& bits) {
    return std::bit_cast<double>(std::stoull(bits.get<std::string>(), nullptr, 16));
  }
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

}  // namespace fsdp::app
