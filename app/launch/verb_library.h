#pragma once

namespace fsdp::app {

// Runs the verb argv[1] of this program and ends the process. argv has to stay until then.
using RunVerb = void (*)(int argc, char** argv);

// Sets GOMP_SPINCOUNT for what loads OpenMP after it, here and in processes that are started, unless it or
// OMP_WAIT_POLICY is set: threads that wait for work look for it 300,000 times, some milliseconds, before they sleep,
// and where other programs want the cores they keep the very thread that they wait for from one. Local.
void shorten_waits();

// Loads the library that holds all verbs but launch, and LibTorch with it: a sixth of a second of a processor. It stays
// loaded, and starts no threads. Local to the process. Throws Error(kUsage) where it cannot be loaded.
RunVerb load_verbs();

}  // namespace fsdp::app
