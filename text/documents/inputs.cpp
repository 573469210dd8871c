#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "io/base/error.h"
#include "text/documents/document_reader.h"

namespace fsdp::io {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAnyFolders = "**";

bool is_glob(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

struct Entry {
  fs::path path;
  bool is_link = false;
  bool is_folder = false;  // links followed
  bool is_file = false;
};

// What a folder holds, without names that start with a dot. Links that lead nowhere are left out.
std::vector<Entry> list_folder(const fs::path& folder) {
  std::error_code failure;
  std::vector<Entry> entries;
  fs::directory_iterator at(folder.empty() ? fs::path(".") : folder, failure);
  for (; !failure && at != fs::directory_iterator(); at.increment(failure)) {
    const fs::path name = at->path().filename();
    if (name.native().starts_with('.')) continue;
    std::error_code ignored;
    entries.push_back(
        {folder / name, at->is_symlink(ignored), at->is_directory(ignored), at->is_regular_file(ignored)});
  }
  if (failure) throw system_error("find", folder, failure.value(), "a readable folder");
  return entries;
}

bool has_extension(const fs::path& path, const std::vector<std::string>& extensions) {
  return extensions.empty() || std::any_of(extensions.begin(), extensions.end(),
                                           [&](const std::string& end) { return path.native().ends_with(end); });
}

// `top` and all folders below it that can be reached without a link.
std::vector<fs::path> folders_below(const fs::path& top) {
  std::vector<fs::path> folders = {top};
  for (size_t i = 0; i < folders.size(); ++i) {
    for (Entry& entry : list_folder(folders[i])) {
      if (entry.is_folder && !entry.is_link) folders.push_back(std::move(entry.path));
    }
  }
  return folders;
}

void add_files_below(const fs::path& top, const std::vector<std::string>& extensions, std::vector<fs::path>& files) {
  for (const fs::path& folder : folders_below(top)) {
    for (Entry& entry : list_folder(folder)) {
      if (entry.is_file && has_extension(entry.path, extensions)) files.push_back(std::move(entry.path));
    }
  }
}

// The entries of `folders` that match one component of a glob.
std::vector<fs::path> match_component(const std::vector<fs::path>& folders, const std::string& component) {
  std::set<fs::path> matches;  // "**/**" leads to the same folder in several ways
  for (const fs::path& folder : folders) {
    if (component == kAnyFolders) {
      const std::vector<fs::path> below = folders_below(folder);
      matches.insert(below.begin(), below.end());
    } else if (!is_glob(component)) {
      std::error_code ignored;
      if (fs::exists(folder / component, ignored)) matches.insert(folder / component);
    } else {
      for (const Entry& entry : list_folder(folder)) {
        const std::string name = entry.path.filename().native();
        if (::fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) == 0) matches.insert(entry.path);
      }
    }
  }
  return {matches.begin(), matches.end()};
}

void keep_folders(std::vector<fs::path>& paths) {
  std::erase_if(paths, [](const fs::path& path) {
    std::error_code ignored;
    return !fs::is_directory(path.empty() ? fs::path(".") : path, ignored);
  });
}

// A last "**" stands for the files of all these folders.
std::vector<fs::path> match_glob(const fs::path& pattern) {
  std::vector<fs::path> paths = {pattern.root_path()};
  for (const fs::path& component : pattern.relative_path()) {
    keep_folders(paths);
    paths = match_component(paths, component.native());
  }
  if (pattern.filename() != kAnyFolders) return paths;
  std::vector<fs::path> files;
  for (const fs::path& folder : paths) {
    for (Entry& entry : list_folder(folder)) {
      if (entry.is_file) files.push_back(std::move(entry.path));
    }
  }
  return files;
}

std::string list_extensions(const std::vector<std::string>& extensions) {
  std::string text;
  for (const std::string& extension : extensions) text += (text.empty() ? "" : " ") + extension;
  return text;
}

Error nothing_found(const std::string& pattern, const std::string& got, const std::string& expected) {
  return Error(ErrorKind::kData, "[find] " + in_quotes(pattern) + ": got " + got + ", expected " + expected);
}

void add_matches(const std::string& pattern, const std::vector<std::string>& extensions, std::vector<fs::path>& files) {
  const size_t before = files.size();
  std::error_code ignored;
  std::error_code failure;
  // A name that is there is meant, whatever characters it has.
  const bool exists = fs::exists(pattern, failure);
  if (failure && !is_glob(pattern)) throw system_error("find", pattern, failure.value(), "to look at it");
  if (!exists && !is_glob(pattern)) {
    throw nothing_found(pattern, "no such file or folder", "a file, a folder or a glob. Check the path.");
  }
  for (const fs::path& path : exists ? std::vector<fs::path>{pattern} : match_glob(pattern)) {
    if (fs::is_directory(path, ignored)) {
      add_files_below(path, extensions, files);
    } else if (fs::is_regular_file(path, ignored)) {
      files.push_back(path);
    } else if (exists) {
      throw nothing_found(pattern, "a device, socket or pipe", "a regular file. Write it to a file first.");
    }
  }
  if (files.size() > before) return;
  if (!exists) throw nothing_found(pattern, "no file that matches", "at least one. Check the pattern.");
  throw nothing_found(pattern, "a folder without such files",
                      extensions.empty()
                          ? "at least one file below it. Check the path."
                          : "at least one below it that ends with one of: " + list_extensions(extensions) +
                                ". Check the path, or take every file by the glob '" + pattern + "/**/*'.");
}

}  // namespace

std::vector<InputPart> find_inputs(const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& extensions) {
  if (patterns.empty()) {
    throw Error(ErrorKind::kUsage, "[find] inputs: got none, expected files, folders or globs. Name at least one.");
  }
  std::vector<fs::path> files;
  for (const std::string& pattern : patterns) add_matches(pattern, extensions, files);
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
  std::set<std::string> seen;
  std::vector<InputPart> inputs;
  for (const fs::path& path : files) {
    std::error_code failure;
    const std::string target = fs::canonical(path, failure).native();
    const uint64_t num_bytes = failure ? 0 : fs::file_size(path, failure);
    if (failure) throw system_error("find", path, failure.value(), "a readable file");
    if (seen.insert(target).second) inputs.push_back({path, num_bytes});
  }
  return inputs;
}

}  // namespace fsdp::io
