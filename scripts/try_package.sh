#!/usr/bin/env bash
# Tries both packages of scripts/package.sh as a new user would, on Debian 12 systems that have just been made: no compiler,
# nothing of this checkout. Prints how long each command took. Needs root (chroot), debootstrap and a network.
#
#   scripts/try_package.sh [tarball] [wheel]       both, or one of them
#
#   FSDP_ROOTS      folder for the systems, outside the checkout [/tmp/fsdp-roots]; 2 GB, kept between runs where made
#   FSDP_TRAIN      arguments of the training [--train.steps=100 --train.fit_minutes=0]
#   FSDP_MIRROR     Debian's [http://deb.debian.org/debian]
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/versions.sh
roots=${FSDP_ROOTS:-/tmp/fsdp-roots}
training=${FSDP_TRAIN:---train.steps=100 --train.fit_minutes=0}
mirror=${FSDP_MIRROR:-http://deb.debian.org/debian}

say() { printf '== %s\n' "$*"; }

make_base() {
  local name=$1 more=$2
  [ -f "$roots/$name/.complete" ] && return
  say "making a Debian 12 in $roots/$name"
  rm -rf "${roots:?}/$name"
  mkdir -p "$roots"
  debootstrap --variant=minbase ${more:+--include=$more} bookworm "$roots/$name" "$mirror" >"$roots/$name.log" 2>&1 ||
    { tail -5 "$roots/$name.log" >&2; exit 1; }
  touch "$roots/$name/.complete"
}

# A system as it came from the installer, at $roots/now.
fresh_system() {
  rm -rf "${roots:?}/now"
  cp -a "$roots/$1" "$roots/now"
  cp -L /etc/resolv.conf "$roots/now/etc/resolv.conf"
  mkdir -p "$roots/now/root/try"
  if [ -n "${PIP_CERT:-}" ]; then # of a proxy that this machine trusts
    cp -L "$PIP_CERT" "$roots/now/root/certificates.pem"
  fi
}

# Runs a command line of a new user in it, with a process table and devices of its own.
inside() {
  unshare --mount --pid --fork bash -c '
    mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc"
    certificates=""
    [ ! -f "$0/root/certificates.pem" ] || certificates=PIP_CERT=/root/certificates.pem
    exec chroot "$0" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin $certificates sh -c "cd /root/try && $1"
  ' "$roots/now" "$1"
}

timed() {
  local begin end
  printf '\n$ %s\n' "$1"
  begin=$(date +%s.%N)
  inside "$1" >"$roots/output" 2>&1 || { cat "$roots/output" >&2; exit 1; }
  end=$(date +%s.%N)
  tail -n "${2:-3}" "$roots/output"
  awk -v a="$begin" -v b="$end" 'BEGIN { printf "   took %.1f s\n", b - a }'
}

check_bare() {
  if inside 'command -v cc gcc g++ c++ clang cmake'; then
    echo "try_package: the system has a compiler, so it proves nothing. Remove $roots and start again." >&2
    exit 1
  fi
}

try_tarball() {
  make_base bare ""
  fresh_system bare
  check_bare
  cp build/packages/fsdp-*-linux-*.tar.gz "$roots/now/root/try/"
  say "the tarball, on Debian 12 with nothing but its essential packages"
  timed "tar -xzf fsdp-*.tar.gz" 0
  timed "fsdp-*/bin/fsdp-quickstart $training" 16
  inside "fsdp-*/bin/fsdp doctor" | tail -n 3
}

try_wheel() {
  make_base python python3-venv,ca-certificates
  fresh_system python
  check_bare
  cp build/packages/libfsdp-*.whl "$roots/now/root/try/"
  say "the wheel, on Debian 12 with Python"
  inside "python3 -m venv env && env/bin/pip install -q libfsdp-*.whl"
  printf '\n$ fsdp --version     # without torch\n'
  inside "env/bin/fsdp --version" && { echo "try_package: it ran without torch" >&2; exit 1; }
  # Of CUDA the CPU needs these two; `pip install libfsdp[torch]` fetches all of it.
  local cuda="nvidia-cuda-runtime==$CUDA_COMPONENT_VERSION nvidia-cuda-cupti==$CUDA_COMPONENT_VERSION"
  timed "env/bin/pip install -q --no-deps libfsdp-*.whl torch==$TORCH_VERSION $cuda" 0
  timed "env/bin/fsdp-quickstart $training" 16
}

main() {
  local parts=${*:-tarball wheel}
  for part in $parts; do
    case "$part" in
      tarball | wheel) ;;
      *)
        echo "usage: scripts/try_package.sh [tarball] [wheel]" >&2
        exit 2
        ;;
    esac
  done
  for part in $parts; do "try_$part"; done
  rm -rf "${roots:?}/now"
}

main "$@"
