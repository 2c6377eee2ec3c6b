#!/usr/bin/env bash
# neon.sh FOLDER HEADERS...: builds this library and its tests for 64-bit ARM in FOLDER, and runs them in an emulator.
# HEADERS are folders of headers that are the same for every processor (fmt, xsimd).
set -euo pipefail
folder=$1
shift

googletest=/usr/src/googletest/googletest
need() { "${@:2}" >/dev/null || { echo "skipped: install the package $1"; exit 77; }; }
need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
need qemu-user-static command -v qemu-aarch64-static
need googletest test -e $googletest/src/gtest-all.cc

tests=$(cd "$(dirname "$0")" && pwd)
cd "$tests/../.."
mkdir -p "$folder/include"
rm -f "$folder"/*.o "$folder"/include/* "$folder/cpu_adam_tests"
# Links to these alone: beside them lies the C library of this machine.
ln -s "$@" "$folder/include"

shopt -s extglob
sources=(core/{dtype,error,parallel}.cpp cpu_adam/!(simd_avx*).cpp tests/cpu_adam/*_test.cpp
  $googletest/src/gtest-all.cc $googletest/src/gtest_main.cc)
launcher=$(command -v ccache || true)
compile() {
  $launcher aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -pthread -DFMT_HEADER_ONLY \
    -Wall -Wextra -Wno-missing-field-initializers -Werror \
    -isystem "$folder/include" -isystem $googletest/include -isystem $googletest -c "$1" -o "$folder/${1//\//_}.o"
}
export -f compile
export folder googletest launcher
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'compile "$1"' compile

# GoogleTest's sockets make the linker warn of a static program.
aarch64-linux-gnu-g++ -static -pthread "$folder"/*.o -o "$folder/cpu_adam_tests" >"$folder/link.log" 2>&1 ||
  { cat "$folder/link.log"; exit 1; }

if aarch64-linux-gnu-nm -C "$folder/cpu_adam_simd_neon.cpp.o" | grep -F ' xsimd::'; then
  echo "error: these are called for each vector; simd_neon.cpp has to replace them"
  exit 1
fi
"$tests/emulate.sh" neon qemu-aarch64-static "$folder/cpu_adam_tests"
