#include <cstdio>
#include <filesystem>
#include <vector>

#include "app/command_line.h"
#include "app/progress/progress_line.h"
#include "app/verbs.h"
#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/base/error.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "train/base/console.h"
#include "train/base/terminal_text.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

// The checkpoints that `folder` means: itself, those in it, or those of the run it is. Newest first.
std::vector<fs::path> checkpoints_of(const fs::path& folder) {
  if (fs::exists(folder / io::kManifestName) || folder.filename().string().rfind("step-", 0) == 0) return {folder};
  std::vector<fs::path> paths;
  for (const fs::path& root : {folder, folder / "checkpoints"}) {
    for (const io::CheckpointPlace& place : io::list_checkpoints(root)) paths.push_back(place.path);
  }
  return paths;
}

// Throws io::Error where the checkpoint is damaged. Returns its bytes.
int64_t check_bytes(const fs::path& path, const io::CheckpointManifest& manifest, int threads) {
  int64_t total = 0;
  for (const io::CheckpointFile& file : manifest.files) total += static_cast<int64_t>(file.bytes);
  train::Console console(train::Console::detect(stdout, 0));
  ProgressLine progress(console, "verify", total);
  io::verify_chunks(path, manifest, 0, 1, threads, [&](uint64_t bytes) { progress.add(static_cast<int64_t>(bytes)); });
  return total;
}

bool is_whole(const fs::path& path, int threads) {
  try {
    const io::CheckpointManifest manifest = io::read_manifest(path);
    const int64_t bytes = check_bytes(path, manifest, threads);
    std::printf("whole    %s: step %lld, %s in %zu file(s), %zu tensors, written %s by %lld rank(s)\n", path.c_str(),
                static_cast<long long>(manifest.step), format_bytes(bytes).c_str(), manifest.files.size(),
                manifest.tensors.size(), train::for_terminal(manifest.created).c_str(),
                static_cast<long long>(manifest.world_size));
    return true;
  } catch (const io::Error& error) {
    std::printf("damaged  %s: %s\n", path.c_str(), train::for_terminal(error.what()).c_str());
    return false;
  }
}

}  // namespace

int run_verify(const Arguments& arguments) {
  fs::path folder;
  int threads = 2;
  CLI::App parser("Reads whole checkpoints and compares every byte with the stored hashes.", "fsdp verify");
  parser.add_option("folder", folder, "a checkpoint, a folder of checkpoints, or the output folder of a run")
      ->required();
  parser.add_option("--threads", threads, "that read and hash")->check(CLI::Range(1, 64));
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  const std::vector<fs::path> paths = checkpoints_of(folder);
  if (paths.empty()) {
    throw Error(ErrorCode::kCheckpoint, "[verify] " + io::in_quotes(folder.string()) +
                                            ": got no folder named step-<N>, expected one. Name a checkpoint, or the "
                                            "output folder of a run.");
  }
  int num_damaged = 0;
  for (const fs::path& path : paths) num_damaged += is_whole(path, threads) ? 0 : 1;
  return num_damaged == 0 ? 0 : static_cast<int>(ErrorCode::kCheckpoint);
}

}  // namespace fsdp::app
