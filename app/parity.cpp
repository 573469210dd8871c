#include "train/parity/parity.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "io/base/json.h"
#include "text/tokenizer/golden_cases.h"
#include "train/base/agreement.h"
#include "train/base/device.h"
#include "train/base/threads.h"

namespace fsdp::app {
namespace {

std::optional<std::filesystem::path> given(const std::string& path) {
  return path.empty() ? std::nullopt : std::optional<std::filesystem::path>(path);
}

// Without any of --expected, --packed and --curve: what lies beside the model.
void find_files(train::ParityOptions& options) {
  if (options.expected || options.packed || options.curve) {
    return;
  }
  if (std::filesystem::exists(options.model / "expected.safetensors")) {
    options.expected = options.model / "expected.safetensors";
  }
  if (std::filesystem::exists(options.model / "packed.safetensors")) {
    options.packed = options.model / "packed.safetensors";
  }
  if (!options.expected && !options.packed) {
    throw Error(ErrorCode::kUsage, "[parity] nothing to compare with: pass --expected, --packed or --curve");
  }
}

void print_table(const tokenizer::CaseReport& report) {
  for (const auto& [kind, count] : report.kinds) {
    std::printf("%-20s %6lld cases %6lld different\n", kind.c_str(), static_cast<long long>(count.num_cases),
                static_cast<long long>(count.num_different));
  }
  for (const std::string& difference : report.differences) std::printf("%s\n", difference.c_str());
  std::printf("%s: %lld cases, %lld different\n", report.num_different == 0 ? "passed" : "FAILED",
              static_cast<long long>(report.num_cases), static_cast<long long>(report.num_different));
}

void print_json(const tokenizer::CaseReport& report) {
  nlohmann::json kinds = nlohmann::json::object();
  for (const auto& [kind, count] : report.kinds) {
    kinds[kind] = {{"cases", count.num_cases}, {"different", count.num_different}};
  }
  const nlohmann::json json = {{"passed", report.num_different == 0},
                               {"cases", report.num_cases},
                               {"different", report.num_different},
                               {"kinds", kinds},
                               {"first_differences", report.differences}};
  std::printf("%s\n", json.dump(2).c_str());
}

// Ids and texts of a tokenizer against those in a cases.json.
int check_tokenizer(const std::filesystem::path& folder, std::filesystem::path cases, bool json) {
  if (cases.empty()) {
    cases = (std::filesystem::is_directory(folder) ? folder : folder.parent_path()) / "cases.json";
  }
  const tokenizer::CaseReport report = tokenizer::check_cases(tokenizer::Tokenizer::load(folder), cases);
  (json ? print_json : print_table)(report);
  return report.num_different == 0 ? 0 : 1;
}

}  // namespace

int run_parity(const Arguments& arguments) {
  std::string model;
  std::string expected;
  std::string packed;
  std::string curve;
  std::string device = "cpu";
  std::string tokenizer;
  std::string cases;
  bool json = false;
  train::ParityOptions options;
  std::string fp8_keep;
  CLI::App parser(
      "Compares a model, sharded over the ranks it is launched with, or a tokenizer with values computed elsewhere.\n"
      "Exit code 1: something is above its tolerance.",
      "fsdp parity");
  parser.add_option("MODEL", model, "Hugging Face folder");
  parser.add_option("--expected", expected, "safetensors file: input_ids, labels, logits, loss, grad.<parameter>");
  parser.add_option("--packed", packed, "the same for one row of several documents, with cu_seqlens");
  parser.add_option("--curve", curve, "folder of curve.json, tokens.safetensors, final.safetensors");
  parser.add_option("--precision", options.shard.precision, "fp32 (default), bf16, fp16, o1 or fp8");
  parser.add_option("--fp8-recipe", options.shard.fp8_recipe,
                    "as shard.fp8_recipe: tensorwise, rowwise (default), blockwise or mxfp8");
  parser.add_option("--fp8-keep", fp8_keep, "as shard.fp8_keep: what of the blocks stays in bf16; default none");
  parser.add_option("--device", device, "cpu (default) or cuda: one GPU a rank");
  parser.add_option("--strategy", options.shard.strategy,
                    "no_shard, optim, optim_grads, optim_grads_params (default), hybrid, hybrid_zero2, hybrid_optim");
  parser.add_option("--replicas", options.shard.replicas, "groups of ranks that hold the same shards; default 1");
  parser.add_option("--microbatches", options.microbatches, "cut each rank's part of a curve's batch into this many")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  parser.add_option("--tolerance-factor", options.tolerance_factor, "multiplies every tolerance; default 1")
      ->check(CLI::PositiveNumber);
  parser.add_option("--tokenizer", tokenizer, "folder of a tokenizer.json, instead of MODEL");
  parser.add_option("--cases", cases, "its expected ids and texts; default: cases.json beside it");
  parser.add_flag("--json", json, "for machines");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  if (model.empty() == tokenizer.empty()) {
    throw Error(ErrorCode::kUsage, "[parity] got " + std::string(model.empty() ? "neither" : "both") +
                                       ", expected MODEL or --tokenizer DIR. See `fsdp parity --help`.");
  }
  if (!tokenizer.empty()) {
    return check_tokenizer(tokenizer, cases, json);
  }
  options.model = model;
  options.expected = given(expected);
  options.packed = given(packed);
  options.curve = given(curve);
  options.shard.device = device;
  if (options.shard.precision == "fp8") options.shard.fp8_keep = fp8_keep;
  parse_strategy(options.shard.strategy);
  find_files(options);
  train::check_parity_options(options);

  const World world = init();
  train::set_threads(world);
  train::on_all_ranks(world, [&] { options.device = train::choose_device(device, "[parity] --device", world); });
  const std::vector<train::ParityReport> reports = train::check_parity(options, world);
  if (world.rank != 0) {
    return 0;
  }
  std::fputs((json ? train::to_json(reports) : train::to_table(reports)).c_str(), stdout);
  return std::all_of(reports.begin(), reports.end(), [](const auto& report) { return report.passed(); }) ? 0 : 1;
}

}  // namespace fsdp::app
