#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::report {

// Calls `take` for each line that is an object with a "step" of at least 0, which it is given too. Other lines are
// counted in `notes`; a last line without an end is one that is being written. No file: nothing. Throws
// Error(kFileSystem) if it cannot be read.
void for_each_object(const std::filesystem::path& path, std::vector<std::string>& notes,
                     const std::function<void(const nlohmann::json& object, int64_t step)>& take);

// The content of a file of at most 1 MiB. Where there is none, or a larger one: "", and a note.
std::string read_small_file(const std::filesystem::path& path, std::vector<std::string>& notes);

// A member of an object: NaN where it has no such number, "" where it has no such text.
double figure(const nlohmann::json& object, const char* key);
double figure(const nlohmann::json& object, const char* part, const char* key);  // of an object in it
std::string text_of(const nlohmann::json& object, const char* key);

// `text` as UTF-8, what is none replaced.
std::string valid_text(const std::string& text);

// In single quotes, without control characters, for errors.
std::string quoted(const std::string& text);

}  // namespace fsdp::report
