#include "train/config/output_folder.h"

#include <array>
#include <system_error>
#include <utility>

#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "train/config/config_file.h"

namespace fsdp::train {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_folder(const OutputFolder& folder, const std::string& what) {
  throw Error(ErrorCode::kFileSystem,
              "[train] output.folder: " + folder.root.string() + " " + what + ". Choose a folder you may write to.");
}

bool has_checkpoints(const OutputFolder& folder) {
  try {
    return !io::list_checkpoints(folder.checkpoints()).empty();
  } catch (const io::Error& failure) {
    refuse_folder(folder, std::string("cannot be read: ") + failure.what());
  }
}

// Folders of an earlier run that OutputUse::kReplace removes.
std::array<fs::path, 2> replaced_folders(const OutputFolder& folder) { return {folder.checkpoints(), folder.model()}; }

bool is_inside(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path way = fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !way.empty() && *way.begin() != "..";
}

// A first name in `folder` that no run of ours gives; empty: none.
template <class IsOurs>
std::string find_foreign(const fs::path& folder, const IsOurs& is_ours) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (!is_ours(entry)) return entry.path().filename().string();
  return "";
}

// What is to be removed must be a run's: folders of these names may be another program's.
void keep_what_others_left(const OutputFolder& folder) {
  const auto is_checkpoint = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return name == "latest" || name.starts_with("step-") || name.starts_with(".step-");
  };
  const auto is_model_file = [](const fs::directory_entry& entry) { return entry.is_regular_file(); };
  std::error_code error;
  std::string found = find_foreign(folder.checkpoints(), is_checkpoint);
  fs::path place = folder.checkpoints();
  if (found.empty()) {
    place = folder.model();
    found = find_foreign(place, is_model_file);
    const bool is_model = fs::exists(place / "config.json", error) || fs::exists(place / "adapter_config.json", error);
    if (found.empty() && fs::exists(place, error) && !fs::is_empty(place, error) && !is_model) found = "no config.json";
  }
  if (found.empty()) return;
  throw Error(ErrorCode::kUsage, "[train] output.folder: this run would remove " + place.string() +
                                     ", which is no run's: it has " + io::in_quotes(found) +
                                     ". Move it away, or choose another output.folder.");
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

}  // namespace

OutputUse check_output(const OutputFolder& folder, const Config& config) {
  std::error_code error;
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
  for (const fs::path& path : {folder.config(), folder.metrics(), folder.checkpoints(), folder.model()}) {
    if (!fs::exists(path, error)) continue;
    throw Error(ErrorCode::kUsage, place + " holds a run already (" + path.filename().string() +
                                       "). Go on with it by --resume=auto, c" + otherwise);
  }
  return OutputUse::kReplace;
}

void make_output(const OutputFolder& folder) {
  std::error_code error;
  fs::create_directories(folder.root, error);
  if (error) refuse_folder(folder, "cannot be made: " + error.message());
}

void start_output(const OutputFolder& folder, const Config& config, OutputUse use) {
  try {
    io::write_file_atomically(folder.config(), config_to_toml(config));
    io::remove_leftovers(io::system_files(), folder.checkpoints());
  } catch (const io::Error& failure) {
    refuse_folder(folder, std::string("cannot be written: ") + failure.what());
  }
  if (use == OutputUse::kContinue) return;
  fs::remove(folder.metrics());
  fs::remove(folder.ledger());
  fs::remove(folder.samples());
  for (const fs::path& path : replaced_folders(folder)) fs::remove_all(path);
}

}  // namespace fsdp::train
