#include "fsdp/base/load_cuda.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <string>

#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr const char* kLibrary = "libfsdp_cuda.so";

std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

}  // namespace

void load_cuda() {
  static std::mutex mutex;
  static bool is_loaded = false;
  const std::lock_guard lock(mutex);
  if (is_loaded) return;
  const std::string path = (own_folder() / kLibrary).string();
  // Never closed: it registers operators. By its name too, for programs that link it and installations that split it
  // off.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* reason = library == nullptr ? dlerror() : nullptr;
  const std::string beside = reason == nullptr ? "" : reason;
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  const char* remedy = std::filesystem::exists(path)
                           ? "What it needs of LibTorch and NVIDIA is not there: `scripts/setup.sh --cuda` installs it "
                             "on machines with a GPU; LD_LIBRARY_PATH leads to another place"
                           : "Build libfsdp with -DFSDP_CUDA=ON (preset cuda) against a CUDA build of LibTorch";
  FSDP_CHECK(library != nullptr, "[load_cuda] cannot load ", path, ": ", beside, ". ", remedy,
             ", or keep the model on the CPU.");
  is_loaded = true;
}

}  // namespace fsdp
