// All programs of this folder as one, each in a namespace of its own; the name it is called by says which of them runs.
#include "programs.inc"  // their headers, and they

#include <cstring>

namespace {

int call(int (*program)(), int, char**) { return program(); }
int call(int (*program)(int, char**), int argc, char** argv) { return program(argc, argv); }

}  // namespace

int main(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  const char* name = slash == nullptr ? argv[0] : slash + 1;
#define PROGRAM(example) \
  if (std::strcmp(name, #example) == 0) return call(&example_##example::run, argc, argv);
#include "names.inc"
#undef PROGRAM
  std::fprintf(stderr, "called as '%s'; expected the name of an example, as its link has it\n", name);
  return 2;
}
