#!/usr/bin/env bash
# install_dependencies.sh [PACKAGE...]: installs what building, testing and the demonstration need, and the packages
# named. Made for Debian 12 (bookworm). Safe to run again: nothing happens where everything is there.
set -euo pipefail

distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown} ${VERSION_ID:-}" || echo unknown)
if [ "$distribution" != "debian 12" ]; then
  echo "error: this script knows Debian 12 only, and this is '$distribution'; install the packages it lists by other means" >&2
  exit 2
fi

packages=(
  g++ cmake ninja-build pkg-config git ccache
  libfmt-dev nlohmann-json3-dev libcli11-dev libxxhash-dev
  libxsimd-dev libdnnl-dev
  ocl-icd-opencl-dev # Debian's oneDNN asks for OpenCL when CMake looks for it
  liburing-dev libhwloc-dev
  libgtest-dev
  g++-aarch64-linux-gnu qemu-user-static googletest # tests of the other architecture: its compiler, emulator and sources
  dpkg-dev file # the program's package names the libraries it needs
  fortunes # the English text of the demonstration
  "$@"
)

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: installing ${missing[*]} needs root, and there is no sudo" >&2; exit 2; }
  root=(sudo)
fi
echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
  tail -n 20 "$log" >&2
  echo "error: apt-get could not install ${missing[*]}" >&2
  exit 3
fi
