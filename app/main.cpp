// The `fsdp` binary. `launch` is in it; all other verbs are in a library that is loaded for them, because LibTorch,
// which comes with it, takes a sixth of a second of a processor and 100 MB to load: a launcher of other programs needs
// none of it, and one of our own verbs loads it once for all ranks.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <string>

#include "app/launch/failure_text.h"
#include "app/launch/process_title.h"
#include "app/launch/verb_library.h"
#include "app/verbs.h"
#include "fsdp/base/error.h"
#include "fsdp/base/lack_of_memory.h"
#include "train/base/leave.h"

namespace {

int fail(fsdp::ErrorCode code, const std::string& message) {
  fsdp::app::print_failure(message);
  return static_cast<int>(code);
}

int run(int argc, char** argv) try {
  fsdp::app::shorten_waits();
  if (argc > 1 && std::strcmp(argv[1], "launch") == 0) return fsdp::app::run_launch({argv + 2, argv + argc});
  fsdp::app::load_verbs()(argc, argv);
  return 0;
} catch (const fsdp::Error& error) {
  return fail(error.code(), error.what());
} catch (const std::exception& error) {
  if (!fsdp::is_lack_of_memory(error)) return fail(fsdp::ErrorCode::kInternal, error.what());
  return fail(fsdp::ErrorCode::kMemory, std::string("[launch] out of memory, or of threads: ") + error.what() +
                                            ". Start fewer ranks, or raise the limits of this user (ulimit -v, "
                                            "ulimit -u).");
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);            // past a limit on the size of files, writes then fail with a message
  fsdp::train::advise_where_memory_ends();  // while LibTorch is loaded, too
  fsdp::app::keep_title_at(argc, argv, environ);
  fsdp::train::leave(run(argc, argv));
}
