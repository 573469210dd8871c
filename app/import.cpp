#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "app/command_line.h"
#include "app/fp8/fp8_source.h"
#include "app/nf4/decoded_source.h"
#include "app/progress/watched_source.h"
#include "app/weight_options.h"
#include "io/weights/open_weights.h"
#include "io/weights/weights_copy.h"

namespace fsdp::app {

int run_import(const Arguments& arguments) {
  std::string path;
  std::string prefix;
  std::string dtype = "keep";
  std::string config_path;
  std::string out;
  std::string shard_size = "5GB";
  io::OutputFolder output;
  CLI::App parser(
      "Turns a checkpoint of PyTorch into a model folder that `fsdp train` and Hugging Face read.\n"
      "Reads what torch.distributed.checkpoint.save wrote, from any number of ranks, without running its pickles; a "
      "model\n"
      "folder of Hugging Face (to convert its dtype; fp8 with scales of 128 x 128 and bitsandbytes' nf4 become bf16) "
      "and a checkpoint of "
      "ours are sources as well.\n\n"
      "  fsdp import dcp/step-100 --prefix=model. --config=config.json --out=model --dtype=bf16",
      "fsdp import");
  parser.add_option("SOURCE", path, "folder with .metadata and *.distcp, or a model folder")->required();
  parser.add_option(kOutput, out, "model folder to write: model.safetensors or shards, config.json")->required();
  parser.add_option(
      "--prefix", prefix,
      "take only tensors whose name starts so, and drop it: `model.` for what was saved as {\"model\": ...}; "
      "default: everything");
  parser.add_option("--dtype", dtype, "of floating-point tensors: keep (default), bf16, fp16 or fp32");
  parser.add_option("--config", config_path, "the model's config.json, to be put beside the weights");
  parser.add_option("--shard-size", shard_size, kShardSizeHelp);
  parser.add_flag("--overwrite", output.overwrite, "replace an existing model folder");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  output.path = out;
  output.max_shard_bytes = parse_shard_size("import", shard_size);
  const std::optional<io::DType> target = parse_weight_dtype("import", dtype);
  const std::unique_ptr<io::WeightSource> source =
      open_decoded_source(open_unscaled_source(io::open_weight_source(path), target), target);
  const std::optional<nlohmann::json> config = find_config("import", config_path, *source);
  const io::CopyPlan plan = io::plan_copy(*source, prefix, target);
  copy_with_progress("import", *source, plan.wanted,
                     [&](const io::WeightSource& watched) { io::write_model_folder(watched, plan, output, config); });
  print_copy("import", *source, plan, out);
  if (!config) {
    std::puts(
        "import: no config.json was given or found; pass --config before training or generating with this folder");
  }
  return 0;
}

}  // namespace fsdp::app
