#include "train/config/output_folder.h"

#include <array>
#include <optional>
#include <system_error>
#include <utility>

#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/hub/adapter_config.h"
#include "train/config/config_file.h"

namespace fsdp::train {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_folder(const OutputFolder& folder, const std::string& what) {
  throw Error(ErrorCode::kFileSystem,
              "[train] output.folder: " + folder.root.string() + " " + what + ". Choose a folder you may write to.");
}

bool has_checkpoints(const OutputFolder& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder.root, ignored)) refuse_folder(folder, "is a file");
  try {
    return !io::list_checkpoints(folder.checkpoints()).empty();
  } catch (const io::Error& failure) {
    refuse_folder(folder, std::string("cannot be read: ") + failure.what());
  }
}

// Folders of an earlier run that OutputUse::kReplace removes.
std::array<fs::path, 3> replaced_folders(const OutputFolder& folder) {
  return {folder.checkpoints(), folder.model(), folder.averaged_model()};
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path way = fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !way.empty() && *way.begin() != "..";
}

// What is in a folder `model` that no run wrote; nothing: a model, or no folder.
std::optional<std::string> find_foreign_in_model(const fs::path& model) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model, error))
    if (!entry.is_regular_file()) return entry.path().filename().string();
  const bool has_config = io::can_be_found(model / "config.json") || io::can_be_found(model / io::kAdapterConfigFile);
  if (has_config || !fs::exists(model, error) || fs::is_empty(model, error)) return std::nullopt;
  return "no config.json";
}

// What is to be removed must be a run's: folders of these names may be another program's.
void keep_what_others_left(const OutputFolder& folder) {
  const auto refuse = [](const fs::path& place, const std::string& found) {
    throw Error(ErrorCode::kUsage, "[train] output.folder: this run would remove " + place.string() +
                                       ", which is no run's: it has " + io::in_quotes(found) +
                                       ". Move it away, or choose another output.folder.");
  };
  if (const auto found = io::find_foreign(folder.checkpoints())) refuse(folder.checkpoints(), *found);
  for (const fs::path& model : {folder.model(), folder.averaged_model()}) {
    if (const auto found = find_foreign_in_model(model)) refuse(model, *found);
  }
}

// What a run starts from must still be there when it starts.
void keep_sources(const OutputFolder& folder, const Config& config) {
  const std::pair<const char*, const std::string&> sources[] = {{"checkpoint.resume", config.checkpoint.resume},
                                                                {"model.path", config.model.path},
                                                                {"tune.lora_from", config.tune.lora_from}};
  for (const auto& [key, source] : sources) {
    if (source.empty()) continue;
    for (const fs::path& removed : replaced_folders(folder)) {
      if (!is_inside(source, removed)) continue;
      throw Error(ErrorCode::kUsage,
                  std::string("[train] ") + key + ": got " + source +
                      ", which output.overwrite = \"replace\" removes. Choose another output.folder" +
                      (source == config.checkpoint.resume ? ", or go on by --resume=auto." : "."));
    }
  }
}

// A word that is none of those that there are is the name of a folder, which must be a checkpoint.
void check_resume(const std::string& resume) {
  if (resume == "auto" || resume == "never") return;
  const std::string start = "[train] checkpoint.resume: got " + io::in_quotes(resume);
  if (!io::can_be_found(resume)) {
    throw Error(ErrorCode::kUsage, start +
                                       ", where there is nothing, expected auto, never or the folder of a "
                                       "checkpoint.");
  }
  try {
    io::read_manifest(resume);
  } catch (const io::Error& failure) {
    throw Error(ErrorCode::kCheckpoint, start + ", which is no checkpoint: " + failure.what());
  }
}

}  // namespace

OutputUse check_output(const OutputFolder& folder, const Config& config) {
  std::error_code error;
  check_resume(config.checkpoint.resume);
  const bool goes_on = has_checkpoints(folder) && config.checkpoint.resume == "auto";
  if (goes_on) return OutputUse::kContinue;
  if (config.output.overwrite == "replace") {
    keep_sources(folder, config);
    keep_what_others_left(folder);
    return OutputUse::kReplace;
  }
  const std::string place = "[train] output.folder: " + folder.root.string();
  const std::string otherwise = "hoose another output.folder, or output.overwrite = \"replace\".";
  if (config.checkpoint.resume == "auto") {
    // A run that died before its first checkpoint has nothing to lose.
    if (!fs::exists(folder.model(), error)) {
      keep_what_others_left(folder);
      return OutputUse::kReplace;
    }
    throw Error(ErrorCode::kUsage, place + " holds a finished run (" + folder.model().filename().string() +
                                       ") and no checkpoint to go on from. C" + otherwise);
  }
  for (const fs::path& path :
       {folder.config(), folder.metrics(), folder.checkpoints(), folder.model(), folder.averaged_model()}) {
    if (!fs::exists(path, error)) continue;
    throw Error(ErrorCode::kUsage, place + " holds a run already (" + path.filename().string() +
                                       "). Go on with it by --resume=auto, c" + otherwise);
  }
  return OutputUse::kReplace;
}

TakenOutput take_output(const OutputFolder& folder, const Config& config) {
  std::error_code error;
  fs::create_directories(folder.root, error);
  if (error) refuse_folder(folder, "cannot be made: " + error.message());
  io::FolderLock lock(folder.root);
  return {std::move(lock), check_output(folder, config)};
}

void store_config(const OutputFolder& folder, const Config& config) {
  io::write_file_atomically(folder.config(), config_to_toml(config));
}

void start_output(const OutputFolder& folder, const Config& config, OutputUse use) {
  try {
    store_config(folder, config);
    io::remove_leftovers(io::system_files(), folder.checkpoints());
  } catch (const io::Error& failure) {
    refuse_folder(folder, std::string("cannot be written: ") + failure.what());
  }
  if (use == OutputUse::kContinue) return;
  fs::remove(folder.metrics());
  fs::remove(folder.ledger());
  fs::remove(folder.events());
  fs::remove(folder.trace());
  fs::remove(folder.samples());
  for (const fs::path& path : replaced_folders(folder)) fs::remove_all(path);
}

}  // namespace fsdp::train
