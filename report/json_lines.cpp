#include "report/json_lines.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "fsdp/base/error.h"
#include "io/base/error.h"
#include "text/unicode/utf8.h"

namespace fsdp::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestLine = size_t{4} << 20;
constexpr uint64_t kLargestSmallFile = uint64_t{1} << 20;
constexpr int64_t kMostSteps = int64_t{1} << 53;  // what a double counts exactly

std::ifstream open_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(ErrorCode::kFileSystem, "[report] " + quoted(path.string()) + ": cannot be read: " +
                                            std::strerror(errno) + ". Ask its owner for permission.");
  }
  return file;
}

bool has_step(const nlohmann::json& object, int64_t& step) {
  const auto found = object.is_object() ? object.find("step") : object.end();
  if (!object.is_object() || found == object.end() || !found->is_number_integer()) return false;
  step = found->get<int64_t>();
  return step >= 0 && step < kMostSteps;
}

}  // namespace

void for_each_object(const fs::path& path, std::vector<std::string>& notes,
                     const std::function<void(const nlohmann::json& object, int64_t step)>& take) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  std::ifstream file = open_file(path);
  int64_t strange = 0;
  bool torn = false;
  for (std::string line; std::getline(file, line);) {
    torn = file.eof();
    int64_t step = 0;
    const nlohmann::json object = line.size() <= kLongestLine
                                      ? nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false)
                                      : nlohmann::json();
    if (has_step(object, step)) {
      take(object, step);
    } else if (!torn) {
      ++strange;
    }
  }
  const std::string name = path.filename().string();
  if (strange > 0) {
    notes.push_back(std::to_string(strange) + (strange == 1 ? " line of " : " lines of ") + name +
                    (strange == 1 ? " is no object" : " are no objects") + " with a step, and left out.");
  }
  if (torn) notes.push_back("The last line of " + name + " has no end: the run was writing it, or broke off.");
}

std::string read_small_file(const fs::path& path, std::vector<std::string>& notes) {
  std::error_code ignored;
  const std::string name = path.filename().string();
  if (!fs::is_regular_file(path, ignored)) {
    notes.push_back("There is no " + name + ".");
    return "";
  }
  if (fs::file_size(path, ignored) > kLargestSmallFile) {
    notes.push_back(name + " is larger than 1 MiB, and left out.");
    return "";
  }
  std::ostringstream text;
  text << open_file(path).rdbuf();
  return text.str();
}

double figure(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

double figure(const nlohmann::json& object, const char* part, const char* key) {
  const auto found = object.find(part);
  const bool is_there = found != object.end() && found->is_object();
  return is_there ? figure(*found, key) : std::numeric_limits<double>::quiet_NaN();
}

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string valid_text(const std::string& text) { return tokenizer::to_valid_utf8(text); }

std::string quoted(const std::string& text) { return io::in_quotes(valid_text(text)); }

}  // namespace fsdp::report
