// The `fsdp` binary. `launch` is in it; all other verbs are in a library that is loaded for them, because LibTorch,
// which comes with it, takes a sixth of a second of a processor and 100 MB to load, and a launcher needs none of it.
#include <dlfcn.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "app/launch/failure_text.h"
#include "app/verbs.h"
#include "fsdp/base/error.h"
#include "fsdp/base/lack_of_memory.h"
#include "train/base/leave.h"

namespace {

using RunVerb = void (*)(int, char**);

constexpr const char* kLibrary = "libfsdp_verbs.so";

int fail(fsdp::ErrorCode code, const std::string& message) {
  fsdp::app::print_failure(message);
  return static_cast<int>(code);
}

int launch(int argc, char** argv) {
  try {
    return fsdp::app::run_launch({argv + 2, argv + argc});
  } catch (const fsdp::Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::exception& error) {
    if (!fsdp::is_lack_of_memory(error)) return fail(fsdp::ErrorCode::kInternal, error.what());
    return fail(fsdp::ErrorCode::kMemory, std::string("[launch] out of memory, or of threads: ") + error.what() +
                                              ". Start fewer ranks, or raise the limits of this user (ulimit -v, "
                                              "ulimit -u).");
  }
}

// Global: libraries that are loaded later look for LibTorch's symbols and for ours. It stays loaded.
int run_from_library(int argc, char** argv) {
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    return fail(fsdp::ErrorCode::kUsage, std::string("cannot load ") + kLibrary +
                                             ", which holds all verbs but launch: " + dlerror() +
                                             ". It and LibTorch have to be where the build or the package "
                                             "put them; LD_LIBRARY_PATH leads to another place.");
  }
  const auto run_verb = reinterpret_cast<RunVerb>(dlsym(library, "fsdp_run_verb"));
  if (run_verb == nullptr) return fail(fsdp::ErrorCode::kInternal, std::string(kLibrary) + " has no fsdp_run_verb");
  run_verb(argc, argv);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);            // past a limit on the size of files, writes then fail with a message
  fsdp::train::advise_where_memory_ends();  // while LibTorch is loaded, too
  const bool is_launch = argc > 1 && std::strcmp(argv[1], "launch") == 0;
  fsdp::train::leave(is_launch ? launch(argc, argv) : run_from_library(argc, argv));
}
