#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "io/base/file_ops.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_folder.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::io {

// A small checkpoint: tensors "model/a" (U8 [5000]) and "model/b" (F32 [10, 70]), each split between two ranks' files.
// Every byte depends on `seed`.
inline constexpr int64_t kSampleNumelA = 5000;
inline constexpr int64_t kSampleNumelB = 700;

struct SampleTensors {
  std::vector<uint8_t> a = std::vector<uint8_t>(kSampleNumelA);
  std::vector<float> b = std::vector<float>(kSampleNumelB);
  bool operator==(const SampleTensors&) const = default;
};

inline SampleTensors sample_tensors(int seed) {
  SampleTensors tensors;
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (uint8_t& value : tensors.a) value = static_cast<uint8_t>(next() >> 24);
  for (float& value : tensors.b) value = static_cast<float>(next() >> 8);
  return tensors;
}

// Writes both ranks' files into the folder.
inline CheckpointManifest write_sample_files(FileOps& files, const std::filesystem::path& folder, int64_t step,
                                             int seed) {
  const SampleTensors tensors = sample_tensors(seed);
  CheckpointManifest manifest;
  manifest.step = step;
  manifest.world_size = 2;
  manifest.values = {{"seed", seed}};
  manifest.tensors = {{"model/a", DType::U8, {kSampleNumelA}, {}}, {"model/b", DType::F32, {10, 70}, {}}};
  const int64_t cuts_a[] = {0, 3001, kSampleNumelA};
  const int64_t cuts_b[] = {0, 350, kSampleNumelB};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const FileImage image({{"model/a", DType::U8, cuts_a[rank], cuts_a[rank + 1]},
                           {"model/b", DType::F32, cuts_b[rank], cuts_b[rank + 1]}});
    const std::vector<const void*> sources = {tensors.a.data() + cuts_a[rank], tensors.b.data() + cuts_b[rank]};
    const std::string name = "rank-0000" + std::to_string(rank) + "-of-00002.safetensors";
    manifest.files.push_back(write_image(files, folder / name, image, sources, 1));
    manifest.tensors[0].parts.push_back({rank, image.offset(0), cuts_a[rank], cuts_a[rank + 1]});
    manifest.tensors[1].parts.push_back({rank, image.offset(1), cuts_b[rank], cuts_b[rank + 1]});
  }
  return manifest;
}

// A whole save, as rank 0 does it.
inline void save_sample(FileOps& files, const std::filesystem::path& root, int64_t step, int seed,
                        const std::string& token = "test") {
  const std::filesystem::path staging = start_checkpoint(files, root, step, token);
  const CheckpointManifest manifest = write_sample_files(files, staging, step, seed);
  commit_checkpoint(files, staging, manifest_text(manifest), root, step);
}

// What the checkpoint in the folder holds. Throws Error if it is not valid.
inline SampleTensors read_sample(const std::filesystem::path& folder) {
  const CheckpointManifest manifest = read_manifest(folder);
  verify_chunks(folder, manifest, 0, 1, 1);
  SampleTensors tensors;
  std::vector<ReadRange> ranges;
  for (const CheckpointPart& part : manifest.tensors.at(0).parts) {
    ranges.push_back({part.file, part.offset, static_cast<uint64_t>(part.end - part.begin), &tensors.a.at(part.begin)});
  }
  for (const CheckpointPart& part : manifest.tensors.at(1).parts) {
    const auto bytes = static_cast<uint64_t>(part.end - part.begin) * sizeof(float);
    ranges.push_back({part.file, part.offset, bytes, &tensors.b.at(part.begin)});
  }
  read_ranges(folder, manifest, ranges, 1);
  return tensors;
}

}  // namespace fsdp::io
