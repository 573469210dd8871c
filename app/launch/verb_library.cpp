#include "app/launch/verb_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::app {
namespace {

constexpr const char* kLibrary = "libfsdp_verbs.so";

}  // namespace

void shorten_waits() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "10000", /*overwrite=*/0);
}

RunVerb load_verbs() {
  // Global: libraries that are loaded later look for LibTorch's symbols and for ours.
  void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorCode::kUsage, std::string("cannot load ") + kLibrary +
                                       ", which holds all verbs but launch: " + dlerror() +
                                       ". It and LibTorch have to be where the build or the package put them; "
                                       "LD_LIBRARY_PATH leads to another place.");
  }
  const auto run_verb = reinterpret_cast<RunVerb>(dlsym(library, "fsdp_run_verb"));
  if (run_verb == nullptr) throw Error(ErrorCode::kInternal, std::string(kLibrary) + " has no fsdp_run_verb");
  return run_verb;
}

}  // namespace fsdp::app
