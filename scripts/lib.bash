# Sourced by scripts/quickstart and scripts/test: where to build, and how.
# Environment: HEADRACE_BUILD_DIR (default: build/ of the repository) holds one folder a preset.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_root=${HEADRACE_BUILD_DIR:-$root/build}
jobs=${HEADRACE_JOBS:-$(nproc)}

# A compiler cache, where there is one, serves every clone: paths are relative to the tree.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

# A heading, with the minutes and seconds since the script began.
say() { printf '\n== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# configure PRESET [cmake arguments]
configure() {
  local preset=$1
  shift
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake -S "$root" -B "$build_root/$preset" --preset "$preset" "${launcher[@]}" "$@"
}

# build PRESET TARGET...
build() {
  local preset=$1
  shift
  cmake --build "$build_root/$preset" --parallel "$jobs" --target "$@"
}
