#!/usr/bin/env bash
# Trains the demonstration: a decoder of 25 million parameters on English text, in less device memory than its weights
# alone would take, with optimizer state and parameters on the drive.
#   quickstart.sh            sets up, builds, trains
#   quickstart.sh --compare  trains once more with everything in device memory, and compares the weights bit by bit
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  "" | --compare) ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

scripts/build.sh release spillway
spillway=build/release/cli/spillway
swap=build/swap
results=build/quickstart
mkdir -p "$swap" "$results"
data=() # all of fortunes that is English: not the drawings
while IFS= read -r file; do data+=(--data "$file"); done < <(
  find /usr/share/games/fortunes -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' ! -name ascii-art | LC_ALL=C sort)

echo
"$spillway" train --config examples/decoder-25m.json "${data[@]}" --nvme-path "$swap" --json "$results/nvme.json"

if [ "${1:-}" = --compare ]; then
  echo
  echo "The same training with everything in device memory:"
  echo
  "$spillway" train --config examples/decoder-25m.json "${data[@]}" --device-memory 2G \
    --offload-optimizer device --offload-parameters device --json "$results/device.json"
  hash_of() { sed -n 's/.*"weights_xxh3": "\([0-9a-f]*\)".*/\1/p' "$1"; }
  spilled=$(hash_of "$results/nvme.json") resident=$(hash_of "$results/device.json")
  echo
  if [ -n "$spilled" ] && [ "$spilled" = "$resident" ]; then
    echo "The weights are the same to the last bit: weights_xxh3 $spilled"
  else
    echo "error: the weights differ: $spilled spilled, $resident in device memory" >&2
    exit 6
  fi
else
  echo
  echo "scripts/quickstart.sh --compare trains it again with everything in device memory and compares every bit."
fi
