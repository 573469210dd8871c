#pragma once

#include <filesystem>

#include "io/checkpoint/checkpoint_folder.h"
#include "train/config/config.h"

namespace fsdp::train {

// The folder of a run on disk.
struct OutputFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path events() const { return root / "events.jsonl"; }
  std::filesystem::path trace() const { return root / "trace.json"; }
  std::filesystem::path ledger() const { return root / "ledger.jsonl"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path samples() const { return root / "samples.jsonl"; }
  // Made by whoever wants it: save and stop, or save and go on.
  std::filesystem::path stop_request() const { return root / "STOP"; }
  std::filesystem::path save_request() const { return root / "SAVE"; }
  std::filesystem::path model() const { return root / "model"; }
  // The same by the averages of its weights, where train.ema asks for them.
  std::filesystem::path averaged_model() const { return root / "model_ema"; }
};

enum class OutputUse {
  kReplace,   // what an earlier run left goes
  kContinue,  // an earlier run goes on
};

// What to do with the folder. Throws Error(kUsage) if it holds a run already that may neither be replaced nor goes on,
// or something that this run starts from, or if checkpoint.resume names no checkpoint. Writes nothing.
OutputUse check_output(const OutputFolder& folder, const Config& config);

// What nobody else writes to while the lock is held, and what is to be done with it: found out under the lock.
struct TakenOutput {
  io::FolderLock lock;
  OutputUse use;
};

// Makes the folder and locks it; throws as check_output(), and Error(kFileSystem).
TakenOutput take_output(const OutputFolder& folder, const Config& config);

// Writes config.toml. Throws io::Error.
void store_config(const OutputFolder& folder, const Config& config);

// Does that, and removes what `use` does not keep, and what interrupted saves left; other files stay. Only for
// the holder of the folder's lock. Throws Error(kFileSystem) if it cannot be written.
void start_output(const OutputFolder& folder, const Config& config, OutputUse use);

}  // namespace fsdp::train
