#include "train/logs/prometheus_file.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "fsdp/base/error.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

// Of a label: backslash, quote and newline are escaped.
std::string label_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return "{run=\"" + escaped + "\"}";
}

std::string metric_name(const std::vector<std::string>& path) {
  std::string name = "fsdp";
  for (const std::string& key : path) name += "_" + key;
  return name;
}

}  // namespace

PrometheusFile::PrometheusFile(std::filesystem::path path, const std::string& run)
    : path_(std::move(path)), label_(label_text(run)) {}

void PrometheusFile::write(const StepNumbers& numbers) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  values_["fsdp_step"] = static_cast<double>(numbers.step);
  values_["fsdp_written_timestamp_seconds"] = now.count();
  for (const NamedNumber& number : numbers.numbers) values_[metric_name(number.path)] = number.value;
  std::string text;
  for (const auto& [name, value] : values_)
    text += "# TYPE " + name + " gauge\n" + name + label_ + format_text(" %.17g\n", value);
  // Not flushed to the disk, unlike what must survive: the next step brings newer numbers. Names that begin with a dot
  // or do not end with .prom are not collected.
  const std::filesystem::path temporary =
      path_.parent_path() / ("." + path_.filename().string() + ".tmp-" + std::to_string(getpid()));
  std::ofstream file(temporary, std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(temporary.c_str(), path_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(ErrorCode::kFileSystem, "[train] output.prometheus: " + path_.string() + ": cannot be written: " +
                                            reason + ". Choose a file in a folder you may write to.");
  }
}

}  // namespace fsdp::train
