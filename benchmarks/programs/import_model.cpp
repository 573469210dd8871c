// A model folder of Hugging Face's layout, read into a sharded decoder by the ranks this was started with, beside the
// bare disk. Rank 0 prints one line of JSON: seconds of the slowest rank, bytes of the greediest.
// benchmarks/peer/import_safetensors.py does the same with the safetensors package.
//
//   import_model write --folder F --preset smollm2-1.7b --dtype bf16        then, at any number of ranks
//   fsdp launch --nproc 2 -- import_model read --folder F
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/rank_clock.h"
#include "benchmarks/support/raw_disk.h"
#include "fsdp/fsdp.h"
#include "io/hub/model_folder_writer.h"
#include "models/config/presets.h"
#include "train/model/parallelize.h"
#include "train/model/weights.h"

namespace fsdp::benchmarks::import_model_program {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kPiece = int64_t{1} << 22;  // elements

struct Options {
  std::string action;
  fs::path folder;
  std::string preset = "smollm2-1.7b";
  std::string dtype = "bf16";
};

// Random weights, so that no disk can compress them.
nlohmann::json write_folder(const RankClock&, const Options& options) {
  const models::Preset* preset = models::find_preset(options.preset);
  if (preset == nullptr)
    throw Error(ErrorCode::kUsage, "[import_model] --preset: got " + options.preset + ", which is none");
  const bool is_bf16 = options.dtype == "bf16";
  const models::Decoder model = deferred([&] { return models::Decoder(preset->config); });
  std::vector<io::TensorDeclaration> tensors;
  for (const auto& entry : model->named_parameters()) {
    tensors.push_back({entry.key(), is_bf16 ? io::DType::BF16 : io::DType::F32, entry.value().sizes().vec()});
  }
  fs::create_directories(options.folder);
  io::ModelFolderWriter writer(options.folder, tensors, io::kDefaultShardBytes);
  at::Tensor values = at::empty({kPiece}, at::kFloat);
  uint64_t seed = 1;
  for (const io::TensorDeclaration& tensor : tensors) {
    const int64_t numel = c10::multiply_integers(tensor.shape);
    for (int64_t first = 0; first < numel; first += kPiece) {
      const int64_t count = std::min(kPiece, numel - first);
      fill_random(values.mutable_data_ptr<float>(), count, seed++);
      const at::Tensor piece = values.narrow(0, 0, count).to(is_bf16 ? at::kBFloat16 : at::kFloat);
      writer.write(tensor.name, first, count, piece.const_data_ptr());
    }
  }
  writer.commit();
  nlohmann::json config = models::to_hugging_face(preset->config);
  config["dtype"] = is_bf16 ? "bfloat16" : "float32";
  std::ofstream(options.folder / "config.json") << config.dump(2) << "\n";
  return {{"parameters", models::num_parameters(preset->config)}};
}

double sum_of(const train::NamedLeaves& leaves, const World& world) {
  at::Tensor total = at::zeros({1}, at::kDouble);
  for (const auto& [name, leaf] : leaves) total += leaf.detach().sum(at::kDouble);
  return sum_over_ranks(world, total).item<double>();
}

// `extra_bytes`: what a rank held at most while it read, beyond what it had before and its shard.
nlohmann::json read_folder(const RankClock& clock, const Options& options) {
  const int64_t before = process_memory().resident_bytes;
  const models::DecoderConfig config = models::read_decoder_config(options.folder);
  train::ShardedModel model =
      train::parallelize(train::deferred_zeros(config), train::make_mesh(clock.world(), 1), ShardOptions());
  const train::NamedLeaves leaves = named_parameters(*model.decoder);
  int64_t shard_bytes = 0;
  for (const auto& [name, leaf] : leaves) shard_bytes += static_cast<int64_t>(leaf.nbytes());
  clock.on_rank0([&] { drop_from_cache(options.folder); });
  reset_peak_memory();
  nlohmann::json result;
  result["seconds"] = {clock.seconds([&] { train::load_weights(model, io::ModelFolder::open(options.folder)); })};
  const int64_t extra = process_memory().peak_bytes - before - shard_bytes;
  result["extra_bytes"] = clock.largest(static_cast<double>(extra));
  result["shard_bytes"] = clock.largest(static_cast<double>(shard_bytes));
  result["sum"] = sum_of(leaves, clock.world());
  return result;
}

// The same files, dealt out evenly: another file, even one of the same size, may lie where the disk is faster.
nlohmann::json read_disk(const RankClock& clock, const Options& options) {
  std::vector<fs::path> files;
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(options.folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    files.push_back(entry.path());
    bytes += static_cast<int64_t>(entry.file_size());
  }
  nlohmann::json result = {{"bytes", bytes}};
  for (const int threads : {1, 2}) {
    for (const bool direct : {true, false}) {
      clock.on_rank0([&] { drop_from_cache(options.folder); });
      const std::string name = std::to_string(threads) + (direct ? " direct" : " cached");
      result["read"][name] = clock.seconds([&] {
        for (const fs::path& file : files) {
          read_raw_part(file, {threads, direct, false}, clock.world().rank, clock.world().size);
        }
      });
    }
  }
  return result;
}

const std::map<std::string, nlohmann::json (*)(const RankClock&, const Options&)> kActions = {
    {"write", write_folder}, {"read", read_folder}, {"raw", read_disk}};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times the reading of a model folder; see scripts/bench.sh import_model");
  app.add_option("action", options.action, "write, read or raw")
      ->required()
      ->check(CLI::IsMember({"write", "read", "raw"}));
  app.add_option("--folder", options.folder, "on the disk that is measured")->required();
  app.add_option("--preset", options.preset, "of write: the model's shape");
  app.add_option("--dtype", options.dtype, "of write: fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
  parse_or_exit(app, argc, argv);
  return options;
}

}  // namespace

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const RankClock clock(init());
  at::set_num_threads(1);
  clock.report(kActions.at(options.action)(clock, options));
  return 0;
}

}  // namespace fsdp::benchmarks::import_model_program
