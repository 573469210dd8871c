#pragma once

namespace fsdp::app {

// Runs the verb argv[1] of this program and ends the process. argv has to stay until then.
using RunVerb = void (*)(int argc, char** argv);

// Loads the library that holds all verbs but launch, and LibTorch with it: a sixth of a second of a processor. It stays
// loaded, and starts no threads. Sets GOMP_SPINCOUNT, in the environment of what this process starts, too, unless it or
// OMP_WAIT_POLICY is set. Local to the process. Throws Error(kUsage) where it cannot be loaded.
RunVerb load_verbs();

}  // namespace fsdp::app
