#include "train/output_folder.h"

#include <system_error>

#include "fsdp/base/error.h"
#include "io/atomic_file.h"
#include "io/error.h"
#include "train/config_file.h"

namespace fsdp::train {

namespace fs = std::filesystem;

void check_output(const OutputFolder& folder, const Config& config) {
  std::error_code error;
  for (const fs::path& path : {folder.config(), folder.metrics(), folder.model()}) {
    if (fs::exists(path, error) && config.output.overwrite == "refuse") {
      throw Error(ErrorCode::kUsage, "[train] output.folder: " + folder.root.string() + " holds a run already (" +
                                         path.filename().string() +
                                         "). Choose another output.folder, or output.overwrite = \"replace\".");
    }
  }
}

void start_output(const OutputFolder& folder, const Config& config) {
  std::error_code error;
  fs::create_directories(folder.root, error);
  if (error) {
    throw Error(ErrorCode::kFileSystem, "[train] output.folder: " + folder.root.string() + " cannot be made: " +
                                            error.message() + ". Choose a folder you may write to.");
  }
  try {
    io::write_file_atomically(folder.config(), config_to_toml(config));
  } catch (const io::Error& failure) {
    throw Error(ErrorCode::kFileSystem, "[train] output.folder: " + folder.root.string() + " cannot be written: " +
                                            failure.what() + ". Choose a folder you may write to.");
  }
  fs::remove(folder.metrics());
  fs::remove_all(folder.model());
}

}  // namespace fsdp::train
