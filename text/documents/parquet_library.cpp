#include "text/documents/parquet_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "io/base/error.h"

namespace fsdp::io {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "libfsdp_parquet.so";

// Where dlopen() looks for it: a name without a slash is searched for along the program's RPATH.
fs::path plugin_path() {
  if (const char* chosen = std::getenv("FSDP_PARQUET_PLUGIN"); chosen != nullptr && *chosen != '\0') return chosen;
  std::error_code failure;
  const fs::path beside = fs::read_symlink("/proc/self/exe", failure).parent_path() / kFileName;
  return fs::exists(beside, failure) ? beside : fs::path(kFileName);
}

Error unusable(const fs::path& path, const std::string& got) {
  return Error(ErrorKind::kUsage,
               "[parquet] " + in_quotes(path.native()) + ": got " + got +
                   ", expected the plug-in that reads parquet. Run scripts/setup.sh --parquet; or pip "
                   "install pyarrow, configure with -DFSDP_PYARROW_DIR=<its folder> and build "
                   "fsdp_parquet.");
}

const FsdpParquetPlugin& load() {
  const fs::path path = plugin_path();
  // Local: none of the many libraries inside of Arrow may answer for one of ours.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw unusable(path, in_quotes(reason != nullptr ? reason : "no reason"));
  }
  using Entry = const FsdpParquetPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, "fsdp_parquet_plugin"));
  if (entry == nullptr) throw unusable(path, "a library without fsdp_parquet_plugin()");
  if (entry()->version != kFsdpParquetVersion) throw unusable(path, "one of another version");
  return *entry();
}

}  // namespace

const FsdpParquetPlugin& parquet_plugin() {
  static const FsdpParquetPlugin& plugin = load();  // tried again after it threw
  return plugin;
}

}  // namespace fsdp::io
