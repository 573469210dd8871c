// All programs of this folder, as one: headers of LibTorch and others are compiled a few times, not once for each. bin/
// has a link to it under each name, and the name it is called by says which of them runs.
#include <cstdio>
#include <cstring>
#include <exception>

// One line `PROGRAM(name)` each: of name.cpp.
#define PROGRAM(name)                          \
  namespace fsdp::benchmarks::name##_program { \
    int run(int argc, char** argv);            \
  }
#include "programs.inc"
#undef PROGRAM

namespace {

struct Program {
  const char* name;
  int (*run)(int argc, char** argv);
};

constexpr Program kPrograms[] = {
#define PROGRAM(name) {#name, fsdp::benchmarks::name##_program::run},
#include "programs.inc"
#undef PROGRAM
};

int run(const Program& program, int argc, char** argv) {
  try {
    return program.run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.name, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  const char* called = slash == nullptr ? argv[0] : slash + 1;
  for (const Program& program : kPrograms) {
    if (std::strcmp(program.name, called) == 0) return run(program, argc, argv);
  }
  std::fprintf(stderr, "called as '%s'; expected the name of a benchmark, as its link in bin/ has it:", called);
  for (const Program& program : kPrograms) std::fprintf(stderr, " %s", program.name);
  std::fputs("\n", stderr);
  return 2;
}
