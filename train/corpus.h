#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::train {

struct CorpusFile {
  std::filesystem::path path;
  int64_t num_bytes = 0;
};

// The text files below some paths, in an order that depends on their names alone.
struct Corpus {
  std::vector<CorpusFile> files;  // sorted by path, byte by byte; each file once
  int64_t num_bytes = 0;
  int64_t num_empty = 0;  // files of no bytes, left out of `files`
};

// Files are taken as they are; folders recursively, without entries whose name starts with '.', without symbolic links
// to folders, and, where `extensions` is not empty, only files that end in one of them (".h"; "" = no extension).
// Throws Error(kData) if a path does not exist or nothing is found, Error(kFileSystem) if a folder cannot be read.
Corpus find_corpus(const std::vector<std::filesystem::path>& paths, const std::vector<std::string>& extensions);

}  // namespace fsdp::train
