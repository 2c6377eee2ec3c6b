#!/usr/bin/env bash
# fuzz.sh [SECONDS]: builds the fuzzers and runs each for that time (30 s unless told), beginning with the inputs of
# tests/fuzz/corpus. Fails where one finds an input that breaks a reader, and says in which file it is.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: fuzz.sh [SECONDS]" >&2; exit 2; }

scripts/install_dependencies.sh clang libclang-rt-14-dev libomp-dev # libomp-dev is the OpenMP of clang
fuzzers=(config_fuzzer token_fuzzer)
scripts/build.sh fuzz "${fuzzers[@]}"

findings=build/fuzz/findings # kept, unlike what the fuzzers add to the corpus
mkdir -p "$findings"
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
cp -r tests/fuzz/corpus/. "$corpus"
failed=0
for fuzzer in "${fuzzers[@]}"; do
  log=build/fuzz/$fuzzer.log
  echo "$fuzzer: $seconds s"
  if build/fuzz/tests/fuzz/"$fuzzer" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$findings/" "$corpus/${fuzzer%_fuzzer}" >"$log" 2>&1; then
    grep '^Done' "$log"
  else
    failed=1
    tail -n 40 "$log" >&2
    found=$(sed -n 's/.*Test unit written to //p' "$log")
    echo "error: $fuzzer failed on ${found:-an input it did not write}; the whole output is in $log" >&2
  fi
done
exit "$failed"
