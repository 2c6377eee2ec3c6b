#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: sets up, configures and builds one preset of CMakePresets.json into build/PRESET.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: build.sh PRESET [TARGET...]}
shift

scripts/install_dependencies.sh
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
mkdir -p build
log=build/configure-$preset.log
cmake --preset "$preset" "${launcher[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset "$preset" ${1:+--target "$@"}
