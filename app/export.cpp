#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "app/command_line.h"
#include "app/fp8/fp8_source.h"
#include "app/gguf/gguf_export.h"
#include "app/nf4/coded_source.h"
#include "app/nf4/decoded_source.h"
#include "app/progress/watched_source.h"
#include "app/weight_options.h"
#include "fsdp/base/error.h"
#include "io/base/input_file.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/checkpoint/checkpoint_source.h"
#include "io/weights/adapter_folder.h"
#include "io/weights/merged_source.h"
#include "io/weights/open_weights.h"
#include "io/weights/weights_copy.h"
#include "models/config/stored_source.h"

namespace fsdp::app {
namespace {

// What is given away, and of it the averages if they are asked for.
struct Exported {
  std::string path;
  io::CheckpointWeights weights = io::CheckpointWeights::kTrained;
};

std::unique_ptr<io::WeightSource> open_weights(const Exported& exported) {
  if (exported.weights == io::CheckpointWeights::kTrained) return io::open_weight_source(exported.path);
  if (!io::can_be_found(std::filesystem::path(exported.path) / io::kManifestName)) {
    throw Error(ErrorCode::kUsage, "[export] --ema: got " + io::in_quotes(exported.path) +
                                       ", which is no checkpoint, expected one (step-N), which has the averages of a "
                                       "run with train.ema. A finished run has them in model_ema, too.");
  }
  return io::open_checkpoint_source(exported.path, exported.weights);
}

// With adapters worked into their base: `base`, or, for a checkpoint, what it holds itself.
std::unique_ptr<io::WeightSource> open_source(const Exported& exported, const std::string& base,
                                              std::optional<io::DType> dtype) {
  const std::string& path = exported.path;
  const auto decoded = [&](std::unique_ptr<io::WeightSource> from) {
    return open_decoded_source(models::with_stored_names(std::move(from)), dtype);
  };
  if (!base.empty())
    return io::open_merged_source(decoded(io::open_weight_source(base)), io::read_adapter(*open_weights(exported)),
                                  dtype);
  std::unique_ptr<io::WeightSource> source = decoded(open_weights(exported));
  if (!source->adapter_config()) return source;
  if (!source->config()) {
    throw Error(ErrorCode::kUsage, "[export] " + io::in_quotes(path) +
                                       ": got a LoRA adapter, expected a whole model. Pass --merge with the folder of "
                                       "the model that it was trained on.");
  }
  io::Adapter adapter = io::read_adapter(*source, io::AdapterBase::kOwn);
  return io::open_merged_source(std::move(source), std::move(adapter), dtype);
}

int export_gguf(const std::unique_ptr<io::WeightSource>& source, const std::string& config_path,
                const std::string& dtype, const io::OutputFolder& output) {
  const std::optional<nlohmann::json> config = find_config("export", config_path, *source);
  if (!config)
    throw Error(ErrorCode::kUsage,
                "[export] gguf: got a source without config.json, which says what the tensors are. "
                "Pass --config.");
  const io::CopyPlan plan = io::plan_copy(*source, "", std::nullopt);
  const io::GgmlType type = parse_gguf_type(dtype, plan);
  std::string why_no_vocabulary;
  copy_with_progress("export", *source, plan.wanted, [&](const io::WeightSource& watched) {
    why_no_vocabulary = write_gguf(watched, plan, output, *config, type);
  });
  std::printf("export: %zu tensors, matrices as %s -> %s\n", plan.outputs.size(), std::string(io::name(type)).c_str(),
              output.path.c_str());
  if (!why_no_vocabulary.empty())
    std::printf("export: the file has no vocabulary: %s; programs must give and take token ids\n",
                why_no_vocabulary.c_str());
  return 0;
}

// Of a checkpoint, or of a folder of peft: without the base, and without moments.
int export_adapter(const Exported& exported, const io::OutputFolder& output) {
  const io::Adapter adapter = io::read_adapter(*open_weights(exported));
  io::write_adapter_folder(adapter, output);
  std::printf("export: an adapter of rank %lld on %zu maps -> %s\n", static_cast<long long>(adapter.config.rank),
              adapter.modules.size(), output.path.c_str());
  return 0;
}

bool is_format(const std::string& name) { return name == "hf" || name == "dcp" || name == "gguf"; }

struct ExportOptions {
  Exported exported;
  std::string format = "hf", dtype = "keep", prefix, config_path, base, out, shard_size = "5GB";
  bool adapter_alone = false;
  io::OutputFolder output;

  bool is_dcp() const { return format == "dcp"; }
  bool is_coded() const { return (dtype == "fp8" || dtype == "nf4") && !is_dcp(); }
};

Parsed parse_options(const Arguments& arguments, ExportOptions& options) {
  bool averaged = false;
  CLI::App parser(
      "Writes the weights of a checkpoint or a model folder for other programs.\n\n"
      "  fsdp export out/checkpoints/step-100 --out=model                           for Hugging Face, and for `fsdp "
      "train`\n"
      "  fsdp export out/model --merge=base --out=model                             a LoRA adapter with its base\n"
      "  fsdp export out/model --format=dcp --prefix=model. --out=dcp               for PyTorch:\n"
      "      state = {\"model\": model.state_dict()}; torch.distributed.checkpoint.load(state, checkpoint_id=\"dcp\")\n"
      "  fsdp export out/model --format=gguf --dtype=q8_0 --out=model.gguf          for llama.cpp",
      "fsdp export");
  parser.add_option("SOURCE", options.exported.path, "folder of one checkpoint (step-N), or a model folder")
      ->required();
  parser.add_option(std::string(kOutput) + ",--to", options.out, "folder to write; the file with gguf")->required();
  parser.add_option(
      "--format", options.format,
      "hf (default): model.safetensors and config.json; dcp: PyTorch's sharded checkpoint; gguf: one file "
      "for llama.cpp");
  parser.add_option(
      "--dtype", options.dtype,
      "of floating-point tensors: keep (default), bf16, fp16 or fp32; of gguf's matrices also q8_0; hf: fp8, "
      "linear layers in e4m3 with scales of 128 x 128 as DeepSeek-V3 has them, or nf4, linear layers in 4 bits as "
      "bitsandbytes has them, the rest in bf16");
  parser.add_option("--prefix", options.prefix, "dcp: start all names so; `model.` for a state dict {\"model\": ...}");
  parser.add_option("--config", options.config_path, "hf, gguf: a config.json to use instead of the source's");
  parser.add_option("--merge", options.base,
                    "SOURCE is a LoRA adapter: work it into this model (folder or checkpoint)");
  parser.add_flag("--adapter", options.adapter_alone,
                  "SOURCE has a LoRA adapter, such as a checkpoint of its run: write it alone, as peft stores it");
  parser.add_flag("--ema", averaged, "SOURCE is a checkpoint: the averages of its weights, which train.ema kept");
  parser.add_option("--shard-size", options.shard_size, kShardSizeHelp);
  parser.add_flag("--overwrite", options.output.overwrite, "replace an existing folder of weights");
  const Parsed parsed = parse(parser, arguments);
  if (averaged) options.exported.weights = io::CheckpointWeights::kAveraged;
  options.output.path = options.out;
  return parsed;
}

void check_options(const ExportOptions& options) {
  if (!is_format(options.format)) {
    throw Error(ErrorCode::kUsage,
                "[export] --format: got " + io::in_quotes(options.format) + ", expected hf, dcp or gguf.");
  }
  if (is_format(options.out)) {
    throw Error(ErrorCode::kUsage, "[export] --out: got " + io::in_quotes(options.out) +
                                       ", the name of a format, expected where to write. Give --format=" + options.out +
                                       " and a path as --out; a folder of this name is ./" + options.out + ".");
  }
  if (options.is_dcp() ? !options.config_path.empty() : !options.prefix.empty()) {
    throw Error(ErrorCode::kUsage, std::string("[export] ") + (options.is_dcp() ? "--config" : "--prefix") +
                                       ": got it with --format=" + options.format +
                                       ", expected it only with the other format. Leave one of them out.");
  }
  const bool has_others =
      !options.base.empty() || options.format != "hf" || options.dtype != "keep" || !options.config_path.empty();
  if (options.adapter_alone && has_others) {
    throw Error(ErrorCode::kUsage,
                "[export] --adapter: got it with --merge, --format, --dtype or --config, expected none of them: an "
                "adapter is written as it is, in fp32. Leave one of them out.");
  }
}

// The source as `dtype` asks, where that is a coding of matrices.
std::unique_ptr<io::WeightSource> in_code(std::unique_ptr<io::WeightSource> source, const ExportOptions& options) {
  if (!options.is_coded()) return source;
  if (!options.config_path.empty() || !source->config()) {
    throw Error(ErrorCode::kUsage, "[export] --dtype: got " + options.dtype +
                                       " with a config.json that is not the source's own, expected it there, "
                                       "as it says how to read the weights. Export in bf16 with --config first.");
  }
  return options.dtype == "fp8" ? open_fp8_source(std::move(source)) : open_coded_source(std::move(source));
}

// In safetensors files or as PyTorch's sharded checkpoint.
int export_folder(const ExportOptions& options) {
  const std::string legal = options.is_dcp() ? kWeightDtypes : "keep, bf16, fp16, fp32, fp8 or nf4";
  const std::optional<io::DType> target =
      options.is_coded() ? std::nullopt : parse_weight_dtype("export", options.dtype, legal);
  const std::unique_ptr<io::WeightSource> source =
      in_code(open_source(options.exported, options.base, target), options);
  const io::CopyPlan plan = io::plan_copy(*source, "", target);
  if (options.is_dcp()) {
    copy_with_progress("export", *source, plan.wanted, [&](const io::WeightSource& watched) {
      io::write_dcp_folder(watched, plan, options.output, options.prefix);
    });
    print_copy("export", *source, plan, options.out);
    return 0;
  }
  const std::optional<nlohmann::json> config = find_config("export", options.config_path, *source);
  copy_with_progress("export", *source, plan.wanted, [&](const io::WeightSource& watched) {
    io::write_model_folder(watched, plan, options.output, config);
  });
  print_copy("export", *source, plan, options.out);
  if (!config) {
    std::puts("export: the source has no config.json; pass --config before training or generating with this folder");
  }
  return 0;
}

}  // namespace

int run_export(const Arguments& arguments) {
  ExportOptions options;
  if (parse_options(arguments, options) == Parsed::kHelpShown) return 0;
  check_options(options);
  options.output.max_shard_bytes = parse_shard_size("export", options.shard_size);
  // Which may be an adapter, and the model's source its base.
  io::check_not_source(options.exported.path, options.output);
  if (options.adapter_alone) return export_adapter(options.exported, options.output);
  if (options.format != "gguf") return export_folder(options);
  const std::unique_ptr<io::WeightSource> source = open_source(options.exported, options.base, std::nullopt);
  return export_gguf(source, options.config_path, options.dtype, options.output);
}

}  // namespace fsdp::app
