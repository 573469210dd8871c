#!/usr/bin/env bash
# Packs the release build for machines that have no compiler, into build/packages (docs/install.md):
#
#   fsdp-VERSION-linux-ARCH.tar.gz                 the binary, the libraries, LibTorch's CPU libraries and headers, CMake
#                                                  files, man pages. Runs where it is unpacked
#   libfsdp-VERSION-py3-none-manylinux_*_ARCH.whl  the binary for a Python environment, with the torch that is there
#
#   scripts/package.sh                 both
#   scripts/package.sh stage FOLDER    the tarball's content as FOLDER; what is LibTorch's by hard links
#   scripts/package.sh wheel FOLDER    the wheel, from such a folder
#
#   FSDP_BUILD       a build tree that is ready; without it scripts/setup.sh builds one
#   FSDP_PACKAGES    where they go [build/packages]
#
# Both are for CPUs: what reads parquet and what drives GPUs is built from source.
set -euo pipefail
cd "$(dirname "$0")/.."

# Every glibc system has them, and a second copy of one of them in a process does harm.
BASE_LIBRARIES=" ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libutil.so.1
  libgcc_s.so.1 libstdc++.so.6 linux-vdso.so.1 "
PLUG_INS="libfsdp_cuda.so libfsdp_parquet.so"

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'package: %s\n' "$*" >&2
  exit 2
}

build=${FSDP_BUILD:-}
packages=${FSDP_PACKAGES:-build/packages}
libtorch=""
version="" libtorch_version=""

find_build() {
  command -v patchelf >/dev/null || fail "no patchelf, which makes paths relative. Install it (apt-get install patchelf)."
  if [ -z "$build" ]; then
    FSDP_TARGETS="fsdp_app fsdp fsdp_c" scripts/setup.sh
    build=build/release
  fi
  libtorch=$(sed -n 's/^LIBTORCH_DIR:PATH=//p' "$build/CMakeCache.txt")
  [ -n "$libtorch" ] || fail "$build/CMakeCache.txt names no LIBTORCH_DIR. Run scripts/setup.sh first."
  # "fsdp 0.1.0 (native: avx512; LibTorch 2.11.0: AVX512)"
  local text
  text=$("$build/bin/fsdp" --version)
  version=$(sed -n 's/^fsdp \([0-9.]*\) .*/\1/p' <<<"$text")
  libtorch_version=$(sed -n 's/.*LibTorch \([0-9.]*\)[:+].*/\1/p' <<<"$text")
  [ -n "$version" ] && [ -n "$libtorch_version" ] || fail "cannot read the versions in '$text'."
}

# Of what bin/fsdp and its verbs load: the system's libraries that others may lack go to lib/, LibTorch's to libtorch/lib/.
copy_libraries() {
  local prefix=$1 name path
  while read -r name path; do
    [[ $BASE_LIBRARIES == *[[:space:]]"$name"[[:space:]]* ]] && continue
    case "$path" in
      "$prefix"/*) ;;
      /lib/* | /usr/lib/*)
        cp -L "$path" "$prefix/lib/$name"
        copy_license "$prefix" "$path"
        ;;
      *) link_or_copy "$path" "$prefix/libtorch/lib/$name" ;;
    esac
  done < <(LD_LIBRARY_PATH="$prefix/lib" ldd "$prefix/bin/fsdp" "$prefix/lib/libfsdp_verbs.so" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
}

# LibTorch is half a gigabyte, and stays as it is.
link_or_copy() { cp -lL "$1" "$2" 2>/dev/null || cp -L "$1" "$2"; }

copy_license() {
  local prefix=$1 package
  package=$(dpkg -S "$2" 2>/dev/null || dpkg -S "/usr$2" 2>/dev/null || true)
  package=${package%%:*}
  [ -f "/usr/share/doc/$package/copyright" ] || return 0
  cp -L "/usr/share/doc/$package/copyright" "$prefix/share/licenses/$package"
}

copy_libtorch_headers() {
  local prefix=$1
  cp -rlL "$libtorch/include" "$prefix/libtorch/" 2>/dev/null || cp -rL "$libtorch/include" "$prefix/libtorch/"
  local licenses
  for licenses in "$libtorch"/../torch-*.dist-info/licenses; do
    [ ! -d "$licenses" ] || cp -r "$licenses" "$prefix/share/licenses/libtorch"
  done
}

# Everything but LibTorch looks beside itself first, then where LibTorch is: $2, from the folder that holds bin/ and lib/.
set_run_paths() {
  local prefix=$1 libtorch_lib=$2 file
  patchelf --set-rpath "\$ORIGIN/../lib:\$ORIGIN/../$libtorch_lib" "$prefix/bin/fsdp"
  for file in "$prefix"/lib/*.so*; do
    [ -L "$file" ] || patchelf --set-rpath "\$ORIGIN:\$ORIGIN/../$libtorch_lib" "$file"
  done
}

stage() {
  local prefix
  rm -rf "$1"
  mkdir -p "$1"
  prefix=$(cd "$1" && pwd)
  cmake --install "$build" --prefix "$prefix" --strip >/dev/null
  [ -d "$prefix/lib" ] || fail "the build installs libraries elsewhere than into lib/: configure it with -DCMAKE_INSTALL_LIBDIR=lib."
  for plug_in in $PLUG_INS; do rm -f "$prefix/lib/$plug_in"; done
  mkdir -p "$prefix/libtorch/lib" "$prefix/share/licenses" "$prefix/share/fsdp"
  copy_libraries "$prefix"
  copy_libtorch_headers "$prefix"
  set_run_paths "$prefix" libtorch/lib
  sed -i '/^  set(LIBTORCH_DIR "\//d' "$prefix/lib/cmake/fsdp/fsdpConfig.cmake" # of the machine that built
  cp -r configs "$prefix/share/fsdp/"
  install -m 755 scripts/package/fsdp-quickstart "$prefix/bin/fsdp-quickstart"
  python3 scripts/package/man_pages.py "$prefix/bin/fsdp" "$prefix/share/man/man1"
}

make_tarball() {
  local folder=$1 name=$2 compress=gzip
  say "packing $packages/$name.tar.gz"
  ! command -v pigz >/dev/null || compress=pigz
  tar --owner=0 --group=0 --sort=name -C "$folder" -I "$compress" -cf "$packages/$name.tar.gz" "$name"
}

# From a staged folder.
make_wheel() {
  local staged=$1 folder=$packages/wheel
  say "packing the wheel"
  rm -rf "$folder"
  mkdir -p "$folder/libfsdp/bin" "$folder/libfsdp/lib"
  cp "$staged/bin/fsdp" "$staged/bin/fsdp-quickstart" "$folder/libfsdp/bin/"
  cp "$staged"/lib/*.so* "$folder/libfsdp/lib/"
  cp -r "$staged/share" "$folder/libfsdp/share"
  cp scripts/package/start.py "$folder/libfsdp/"
  set_run_paths "$folder/libfsdp" ../torch/lib
  python3 scripts/package/wheel.py "$folder" --version "$version" --torch "$libtorch_version" --out "$packages"
  rm -rf "$folder"
}

main() {
  if [ $# -ne 0 ] && { [ $# -ne 2 ] || [[ ! $1 =~ ^(stage|wheel)$ ]]; }; then
    fail "usage: scripts/package.sh [stage FOLDER | wheel FOLDER]"
  fi
  find_build
  mkdir -p "$packages"
  case "${1:-}" in
    stage) stage "$2" ;;
    wheel) make_wheel "$2" ;;
    *)
      local name
      name=fsdp-$version-linux-$(uname -m)
      stage "$packages/staged/$name"
      make_tarball "$packages/staged" "$name"
      make_wheel "$packages/staged/$name"
      rm -rf "$packages/staged"
      ls -lh "$packages"
      ;;
  esac
}

main "$@"
