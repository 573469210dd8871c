#include "train/base/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"

namespace fsdp::train {
namespace {

// Evaluations and samples come after their step and are done again by a run that goes on from there.
bool is_kept(const std::string& line, int64_t last_step) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return false;
  const int64_t step = object["step"].get<int64_t>();
  const bool is_after_step = object.contains("heldout") || object.contains("prompt");
  return step >= 0 && (is_after_step ? step < last_step : step <= last_step);
}

void keep_lines(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    if (is_kept(line, last_step)) kept += line + "\n";
  }
  io::write_file_atomically(path, kept);
}

}  // namespace

LineFile::LineFile(const std::filesystem::path& path, int64_t last_step) : path_(path) { go_back_to(last_step); }

LineFile::~LineFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void LineFile::go_back_to(int64_t last_step) {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  keep_lines(path_, last_step);
  open();
}

void LineFile::open() {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw Error(ErrorCode::kFileSystem, "[train] " + path_.string() + ": cannot be written: " + std::strerror(errno) +
                                            ". Choose another output.folder.");
  }
}

void LineFile::sync() {
  if (fdatasync(descriptor_) != 0) {
    throw Error(ErrorCode::kFileSystem, "[train] " + path_.string() + ": " + std::strerror(errno) +
                                            ". Free some space, or choose another output.folder.");
  }
}

void LineFile::append(const std::string& json) {
  const std::string line = json + "\n";
  if (write(descriptor_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(ErrorCode::kFileSystem,
                "[train] " + path_.string() + ": " + std::strerror(errno) + ". Free some space, and start again.");
  }
}

}  // namespace fsdp::train
