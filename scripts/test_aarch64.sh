#!/usr/bin/env bash
# Compiles the raw kernels and their tests for 64-bit Arm and runs the tests under emulation, on an x86-64 Debian. Other
# systems: the same with a compiler, Highway and GoogleTest for aarch64 of their own and cmake's toolchain variables.
# Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/packages.sh

PACKAGES="g++-aarch64-linux-gnu qemu-user libhwy-dev:arm64 libhwy1:arm64 libgtest-dev:arm64"
SYSROOT="$PWD/.deps/aarch64"
BUILD=build/aarch64

say() { printf '== %s\n' "$*"; }

# Compiler and emulator are programs of this system; libraries for Arm are unpacked beside it, under .deps.
install_tools() {
  local missing=()
  command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
  command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || { echo "test_aarch64: install these with your package manager: $PACKAGES" >&2; exit 2; }
  say "installing ${missing[*]}"
  install_packages "${missing[@]}"
}

install_libraries() {
  [ -f "$SYSROOT/.complete" ] && return
  say "unpacking Highway and GoogleTest for aarch64 into .deps/aarch64"
  local incoming="$PWD/.deps/incoming-aarch64" apt
  rm -rf "$incoming" "$SYSROOT"
  mkdir -p "$incoming/lists/partial" "$SYSROOT"
  apt=(apt-get -qq -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists="$incoming/lists"
    -oDir::Cache::pkgcache= -oDir::Cache::srcpkgcache= -oAPT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$incoming" && "${apt[@]}" download libhwy-dev libhwy1 libgtest-dev)
  for package in "$incoming"/*.deb; do dpkg -x "$package" "$SYSROOT"; done
  rm -rf "$incoming"
  touch "$SYSROOT/.complete"
}

main() {
  install_tools
  install_libraries
  local libraries="$SYSROOT/usr/lib/aarch64-linux-gnu"
  mkdir -p build
  cmake -S kernels/raw -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_PREFIX_PATH="$SYSROOT/usr" \
    -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$libraries" \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=$libraries" \
    >"$BUILD.log" 2>&1 || { cat "$BUILD.log" >&2; exit 1; }
  rm -f "$BUILD.log"
  cmake --build "$BUILD"
  ctest --test-dir "$BUILD" --output-on-failure --no-tests=error -j 2 "$@"
}

main "$@"
