#!/usr/bin/env bash
# check.sh SOURCE BUILD SCRATCH COMPILER: installs what is built in BUILD and uses it as others would: the headers one by
# one, the examples, a project with headers of the same names as ours (with the package, and with SOURCE as a
# sub-directory of it), and Debian's packages.
set -euo pipefail
source=$1 build=$2 scratch=$3 compiler=$4
consumer=$source/tests/install/consumer
prefix=$scratch/prefix
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"

step() { echo "== $*"; }
fail() { echo "error: $*" >&2; exit 1; }
# quietly LOG COMMAND...: shows the output only where the command fails.
quietly() {
  local log=$scratch/$1.log
  shift
  "$@" >>"$log" 2>&1 || { cat "$log" >&2; fail "'$*' failed"; }
}
options=(-G Ninja "-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_BUILD_TYPE=Release)
command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

step "install"
quietly install cmake --install "$build" --prefix "$prefix"
# What belongs to the inside, or to other libraries, is not for others to include.
for internal in cpu_adam/simd.h kernels/host/state.h offload/context.h offload/store.h core/json_document.h; do
  [ ! -e "$prefix/include/spillway/$internal" ] || fail "the internal header $internal is installed"
done

step "every installed header compiles alone"
(cd "$prefix/include" && find spillway -name '*.h') >headers
[ "$(wc -l <headers)" -ge 30 ] || fail "only $(wc -l <headers) headers are installed"
compile_alone() {
  echo "#include <$1>" | "$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$prefix/include" -x c++ - ||
    { echo "error: <$1> does not compile alone" >&2; return 255; }
}
export -f compile_alone
export compiler prefix
xargs -P 2 -I{} bash -c 'compile_alone {}' <headers

step "the step of docs/library.md compiles"
sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$source/docs/library.md" >step.cpp
[ -s step.cpp ] || fail "docs/library.md shows no code"
"$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$prefix/include" step.cpp

step "the examples, against the package"
quietly examples cmake -S "$prefix/share/spillway/examples" -B examples "${options[@]}" "-DCMAKE_PREFIX_PATH=$prefix"
quietly examples cmake --build examples -j 2
quietly examples ctest --test-dir examples --output-on-failure --no-tests=error

step "a consumer of aio and the engine finds the package without what the others need"
without=()
for package in dnnl OpenMP CLI11 nlohmann_json xsimd GTest benchmark; do
  without+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON")
done
configure=(cmake -S "$consumer" "${options[@]}" "-DCMAKE_PREFIX_PATH=$prefix" "${without[@]}")
quietly aio "${configure[@]}" -B aio -DCONSUMER_COMPONENTS=aio
if grep -E '^(dnnl|OpenMP|CLI11|nlohmann_json|xsimd)_' aio/CMakeCache.txt; then
  fail "who asks for aio alone makes CMake look for the above"
fi
quietly aio cmake --build aio -j 2
quietly aio env -C aio ./consumer_aio
quietly engine "${configure[@]}" -B engine "-DCONSUMER_COMPONENTS=aio;offload"
quietly engine cmake --build engine -j 2
quietly engine env -C engine ./consumer_engine
for flag in -ffp-contract -fopenmp -Wold-style-cast -march; do
  ! grep -q -e "$flag" engine/compile_commands.json || fail "$flag reaches a consumer's own files"
done

step "a consumer of everything"
quietly models cmake -S "$consumer" -B models "${options[@]}" "-DCMAKE_PREFIX_PATH=$prefix" -DCONSUMER_MODELS=ON
quietly models cmake --build models -j 2 --target consumer_models
quietly models models/consumer_models

step "what is not there is said"
refused() { # LOG TEXT ARGUMENT...
  local log=$1 text=$2
  shift 2
  ! "${configure[@]}" -B "$log" "$@" >"$log.log" 2>&1 || fail "CMake accepted $*"
  tr -s ' \n' ' ' <"$log.log" | grep -q -F -e "$text" || { cat "$log.log" >&2; fail "the message does not say '$text'"; }
}
refused unknown "spillway has no component 'gpu'; there are core, aio" "-DCONSUMER_COMPONENTS=aio;gpu"
refused missing "dnnl" -DCONSUMER_COMPONENTS=kernels

step "the same consumer with the source as a sub-directory"
quietly sub cmake -S "$consumer" -B sub "${options[@]}" "-DCONSUMER_SOURCE=$source" -DCONSUMER_MODELS=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON
quietly sub cmake --build sub -j 2 --target consumer_aio
quietly sub env -C sub ./consumer_aio
grep -q CONSUMER_FLAG sub/compile_commands.json || fail "the parent's flags are lost"
grep 'consumer/aio.cpp' sub/compile_commands.json >own_command
! grep -q -e -ffp-contract -e -Wold-style-cast own_command || fail "our flags reach the parent's own files"
quietly sub cmake --install sub --prefix "$scratch/sub_prefix"
[ -z "$(find "$scratch/sub_prefix" -type f 2>/dev/null)" ] || fail "the parent's installation has our files"

step "Debian's packages"
quietly package cpack --config "$build/CPackConfig.cmake" -B "$scratch/packages"
runtime=$(echo packages/spillway_*.deb) dev=$(echo packages/libspillway-dev_*.deb)
quietly package dpkg-deb -I "$runtime"
quietly package dpkg-deb -I "$dev"
dpkg-deb -x "$runtime" runtime
program=runtime/usr/bin/spillway
version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/spillway-config-version.cmake")
[ "$("$program" --version)" = "spillway $version" ] || fail "the packaged program says $("$program" --version)"
[ "$(dpkg-deb -f "$runtime" Version)" = "$version" ] || fail "the package is not of version $version"
[ -e runtime/usr/share/spillway/examples/decoder-tiny.json ] || fail "the package lacks the examples' configurations"
[ -z "$(find runtime \( -name '*.h' -o -name '*.a' -o -name '*.cmake' \))" ] || fail "the program's package has headers or libraries"
! readelf -S "$program" | grep -q '\.debug_info' || fail "the packaged program is not stripped"
depends=$(dpkg-deb -f "$runtime" Depends)
ldd "$program" >libraries
! grep 'not found' libraries || fail "the packaged program lacks libraries"
while read -r library; do # those that it names itself
  path=$(awk -v library="$library" '$1 == library { print $3 } index($1, "/" library) { print $1 }' libraries)
  [ -n "$path" ] || fail "ldd does not show $library"
  # /lib is a link to /usr/lib, and a package may have the file in either.
  owner=$(dpkg -S "$path" 2>/dev/null || dpkg -S "/usr$path" 2>/dev/null || dpkg -S "${path#/usr}")
  package=${owner%%:*}
  [[ ", $depends," == *", $package"[\ ,]* ]] || fail "the package does not depend on $package, which has $library: $depends"
done < <(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
dpkg-deb -x "$dev" dev
[ -e dev/usr/include/spillway/offload/engine.h ] || fail "the libraries' package lacks headers"

cd /
rm -rf "$scratch"
echo "all is well"
