# shellcheck shell=bash
# To be sourced. Installs wheels whose content is known: scripts/wheels.txt has a hash for each file that may be taken.

# install_wheels FOLDER NAME==VERSION...: into a new folder, without what they need in Python. Only C++ libraries, headers and
# programs are used, which are the same for all Python versions. WHEEL_HASHES names another file than scripts/wheels.txt.
install_wheels() {
  local folder=$1 hashes=${WHEEL_HASHES:-scripts/wheels.txt} wheel known failed=""
  shift
  rm -rf "$folder"
  mkdir -p "$(dirname "$folder")"
  : >"$folder.txt"
  for wheel in "$@"; do
    known=$(awk -v wheel="$wheel" '$1 == wheel, !/\\$/' "$hashes")
    if [ -z "$known" ]; then
      echo "setup: $hashes has no hash of $wheel. Run scripts/hash_wheels.py after a change of scripts/versions.sh." >&2
      return 2
    fi
    printf '%s\n' "$known" >>"$folder.txt"
  done
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps \
    --only-binary=:all: --require-hashes --target "$folder" -r "$folder.txt" 2>"$folder.log" || failed=1
  cat "$folder.log" >&2
  if [ -n "$failed" ]; then
    rm -rf "$folder"
    if grep -q "DO NOT MATCH THE HASHES" "$folder.log"; then
      echo "setup: got another file than the one whose hash $hashes has, expected the same; nothing of it was installed." \
        "Look where pip gets its wheels from before you trust them." >&2
    fi
    return 1
  fi
  rm -f "$folder.txt" "$folder.log"
}
