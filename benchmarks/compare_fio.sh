#!/usr/bin/env bash
# Holds `spillway bench io` against fio on the same file: reading, writing and both, by short slices that take
# turns (ours, fio, fio, fio, fio, ours), with fio against itself as the control, and the processor time of both on
# a memory file system. Ratios only: a drive's speed changes from second to second. docs/io.md explains the figures.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: benchmarks/compare_fio.sh [options]
  --path DIR        where the file is made that both use, and removed at the end (.)
  --size S          its bytes, such as 512M or 2G (1G)
  --slices N        slices of ours in each mode, at least 20 (20)
  --seconds S       the length of a slice (1)
  --mode MODE,...   read, mixed, write (all)
  --tmpfs DIR       a memory file system, for the processor time (/dev/shm); none: leave it out
  --spillway FILE   the program (build/release/cli/spillway of this tree, else that of the PATH)
  --json FILE       machine, settings, every slice and the results
Exits 0 where every ratio reaches its goal, 1 where one does not, and 2 where nothing could be measured.
TEXT
}

fail() {
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2
  exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
path=. size=1G slices=20 seconds=1 mode=read,mixed,write tmpfs=/dev/shm json= program=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --path | --size | --slices | --seconds | --mode | --tmpfs | --spillway | --json)
      [ $# -ge 2 ] || fail "$1: a value is missing" "compare_fio.sh --help shows what can be given"
      case $1 in
        --path) path=$2 ;;
        --size) size=$2 ;;
        --slices) slices=$2 ;;
        --seconds) seconds=$2 ;;
        --mode) mode=$2 ;;
        --tmpfs) tmpfs=$2 ;;
        --spillway) program=$2 ;;
        --json) json=$2 ;;
      esac
      shift 2 ;;
    *) fail "'$1' is not known" "compare_fio.sh --help shows what can be given" ;;
  esac
done

command -v fio > /dev/null || fail "fio is not installed" "apt-get install fio (Debian's package is what the goals are held against)"
command -v python3 > /dev/null || fail "python3 is not installed" "apt-get install python3"
if [ -z "$program" ]; then
  program=$here/../build/release/cli/spillway
  [ -x "$program" ] || program=$(command -v spillway) || fail "there is no spillway" "scripts/build.sh release builds it; or name it with --spillway"
fi
[ -x "$program" ] || fail "$program cannot be run" "name the program with --spillway"
[ -d "$path" ] || fail "--path: $path is no directory" "name one on the drive that is to be measured"
case $slices in '' | *[!0-9]*) fail "--slices: '$slices' is no number" "such as 20" ;; esac
[ "$slices" -ge 20 ] || fail "--slices: $slices slices say nothing on a drive whose speed changes" "at least 20"
bytes=$(numfmt --from=iec "$size" 2> /dev/null) || fail "--size: '$size' is no size" "such as 512M or 2G"
[ "$bytes" -ge $((512 << 20)) ] || fail "--size: $size is less than what the deepest queue of the search needs" "at least 512M"
bytes=$((bytes >> 23 << 23))
room=$(($(df --output=avail -B1 "$path" | tail -n 1)))
[ $((bytes * 2)) -le "$room" ] || fail "--size: $size is more than half of the $room bytes that are free in $path" "a smaller --size, or another --path"

file= memory_file= worker=
finish() {
  trap - EXIT INT TERM HUP
  if [ -n "$worker" ]; then kill -TERM "$worker" 2> /dev/null || true; wait "$worker" 2> /dev/null || true; fi
  rm -f ${file:+"$file"} ${memory_file:+"$memory_file"}
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM HUP

file=$(mktemp "$path/compare-fio-XXXXXX")
fallocate -l "$bytes" "$file" || fail "the file cannot be reserved" "a smaller --size, or another --path"
if [ "$tmpfs" != none ]; then
  [ -d "$tmpfs" ] || fail "--tmpfs: $tmpfs is no directory" "none leaves this part out"
  memory_file=$(mktemp "$tmpfs/compare-fio-XXXXXX")
  truncate -s "$bytes" "$memory_file"
fi
# In the background, so that a signal is answered at once.
python3 "$here/compare_fio.py" --program "$program" --file "$file" --memory-file "$memory_file" --slices "$slices" \
  --seconds "$seconds" --modes "$mode" --json "$json" &
worker=$!
code=0
wait "$worker" || code=$?
worker=
exit "$code"
