#!/usr/bin/env bash
# emulate.sh ISAS EMULATOR... PROGRAM: runs the tests of PROGRAM on an emulated processor that has ISAS, separated by
# spaces, and no other than these ("none" for no one). Fails where a test fails, where the tests of an ISA were skipped
# although the processor has it, and where they ran although it has not.
set -euo pipefail
isas=$1
shift
command -v "$1" >/dev/null || { echo "skipped: no $1; install the package qemu-user-static"; exit 77; }

ulimit -c 0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A death test starts the program once more, and that process would not be emulated.
"$@" --gtest_filter='-*DeathTest*' >"$log" 2>&1 ||
  { code=$?; cat "$log"; echo "error: status $code of $*"; exit 1; }

wrong=0
for isa in neon avx2 avx512; do
  ran=$(grep -cE "^\[       OK \] .*/[^/]*$isa" "$log" || true)
  skipped=$(grep -cxF "this processor has no $isa" "$log" || true)
  echo "$isa: $ran tests ran, $skipped were skipped for want of it"
  if [[ " $isas " == *" $isa "* ]]; then
    [ "$ran" -gt 0 ] && [ "$skipped" -eq 0 ] || { echo "error: the processor has $isa: all of them must run"; wrong=1; }
  else
    [ "$ran" -eq 0 ] && [ "$skipped" -gt 0 ] || { echo "error: the processor has no $isa: none of them may run"; wrong=1; }
  fi
done
exit $wrong
