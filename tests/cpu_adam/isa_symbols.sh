#!/bin/sh
# isa_symbols.sh LIBRARY: fails where an object that is compiled for one ISA defines a weak symbol that does not name
# the ISA: the linker could keep that copy for the whole program, which then dies on a lesser processor.
set -eu
nm -C "$1" | awk '
  /^simd_.*:$/ { simd = $1; objects++ ; next }
  /^[^ ]+\.o:$/ { simd = "" ; next }
  simd != "" && / [WVu] / && !/avx/ && !/DW\.ref\./ { print simd, $0; bad = 1 }
  END { if (objects == 0) { print "no simd_* object in the library"; exit 1 } exit bad }'
