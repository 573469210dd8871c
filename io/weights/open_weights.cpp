#include "io/weights/open_weights.h"

#include <system_error>

#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/checkpoint/checkpoint_source.h"
#include "io/dcp/dcp_metadata.h"
#include "io/dcp/dcp_source.h"
#include "io/hub/model_source.h"

namespace fsdp::io {

namespace {

// Why a folder is no source, where we can say better than "no weights".
void check_for_near_misses(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return;
  const auto refuse = [&](const std::string& detail) {
    throw Error(ErrorKind::kModel, "[source] " + in_quotes(path.native()) + ": " + detail);
  };
  for (const auto& item : std::filesystem::directory_iterator(path, error)) {
    const std::string name = item.path().filename().native();
    if (name.starts_with("step-") && can_be_found(item.path() / kManifestName)) {
      refuse("got a folder of checkpoints, expected one of them. Pass " + in_quotes((path / name).native()) +
             " or another.");
    }
    if (name.starts_with("__") && name.ends_with(kDcpMetadataName)) {
      refuse("got metadata of single ranks (" + in_quotes(name) +
             "), expected one .metadata. Save with the coordination of ranks, which is the default of DCP.");
    }
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) {
      refuse("got shards of HuggingFaceStorageWriter, expected one model. Save it with enable_consolidation=True.");
    }
    if (item.path().extension() == ".distcp" && !can_be_found(path / kDcpMetadataName)) {
      refuse("got files of DCP without .metadata, expected it. The save was not finished, or a file is missing.");
    }
  }
  if (can_be_found(path / "checkpoints") && !can_be_found(path / "config.json")) {
    refuse("got the output of a run, expected one checkpoint. Pass its folder checkpoints/step-N.");
  }
}

}  // namespace

std::unique_ptr<WeightSource> open_weight_source(const std::filesystem::path& path) {
  if (can_be_found(path / kDcpMetadataName)) return open_dcp_source(path);
  if (can_be_found(path / kManifestName)) return open_checkpoint_source(path);
  if (!is_model_folder(path)) check_for_near_misses(path);
  return open_model_source(path);
}

}  // namespace fsdp::io
