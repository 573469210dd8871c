#include "train/corpus.h"

#include <algorithm>
#include <system_error>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

class Collector {
 public:
  explicit Collector(const std::vector<std::string>& extensions) : extensions_(extensions) {}

  void add(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      add_folder(path);
    } else if (fs::is_regular_file(status)) {
      add_file(path);
    } else {
      throw Error(ErrorCode::kData, "[prepare] " + path.string() + ": " +
                                        (fs::exists(status) ? "neither a file nor a folder" : "does not exist") +
                                        ". Pass text files or folders of them.");
    }
  }

  Corpus finish() {
    auto& files = corpus_.files;
    std::sort(files.begin(), files.end(),
              [](const CorpusFile& a, const CorpusFile& b) { return a.path.native() < b.path.native(); });
    const auto same = [](const CorpusFile& a, const CorpusFile& b) { return a.path == b.path; };
    files.erase(std::unique(files.begin(), files.end(), same), files.end());
    corpus_.num_empty =
        static_cast<int64_t>(std::erase_if(files, [](const CorpusFile& f) { return f.num_bytes == 0; }));
    for (const CorpusFile& file : files) {
      corpus_.num_bytes += file.num_bytes;
    }
    return std::move(corpus_);
  }

 private:
  [[noreturn]] static void refuse(const fs::path& path, const std::error_code& error) {
    throw Error(ErrorCode::kFileSystem,
                "[prepare] " + path.string() + ": " + error.message() + ". Make it readable, or leave it out.");
  }

  bool wanted(const fs::path& path) const {
    return extensions_.empty() ||
           std::find(extensions_.begin(), extensions_.end(), path.extension().string()) != extensions_.end();
  }

  void add_file(const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) {
      refuse(path, error);
    }
    corpus_.files.push_back({path.lexically_normal(), static_cast<int64_t>(size)});
  }

  void add_folder(const fs::path& folder) {
    std::error_code error;
    auto entry = fs::directory_iterator(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (entry->path().filename().native().front() == '.') {
        continue;
      }
      std::error_code ignored;  // a dangling link is neither file nor folder
      if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) {
        add_folder(entry->path());
      } else if (entry->is_regular_file(ignored) && wanted(entry->path())) {
        add_file(entry->path());
      }
    }
    if (error) {
      refuse(folder, error);
    }
  }

  const std::vector<std::string>& extensions_;
  Corpus corpus_;
};

}  // namespace

Corpus find_corpus(const std::vector<fs::path>& paths, const std::vector<std::string>& extensions) {
  Collector collector(extensions);
  for (const fs::path& path : paths) {
    collector.add(path);
  }
  Corpus corpus = collector.finish();
  if (corpus.files.empty()) {
    throw Error(ErrorCode::kData, "[prepare] empty corpus: got " + std::to_string(corpus.num_empty) +
                                      " empty files and no others, expected text. Check the paths" +
                                      (extensions.empty() ? "." : " and --include."));
  }
  return corpus;
}

}  // namespace fsdp::train
