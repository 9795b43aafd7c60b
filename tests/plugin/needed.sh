#!/usr/bin/env bash
# The plugin and the preload library live in other people's processes: they must need libc only, export what their
# version script names and nothing else, and stay loaded; the fat binary must hold machine code for every supported
# architecture.   needed.sh LIBRARY VERSION_SCRIPT [CUOBJDUMP FATBIN]
set -eu
library=$1
fail() { echo "$library: $*" >&2; exit 1; }
needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
for file in $needed; do
  case $file in
    libc.so.6 | ld-linux-*.so.*) ;; # the loader is part of libc
    *) fail "needs $file" ;;
  esac
done
echo "$needed" | grep -qx libc.so.6 || fail "does not even need libc: readelf's output was not understood"
readelf -d "$library" | grep -q NODELETE || fail "can be unloaded (no NODELETE)"
readelf -d "$library" | grep -q "SONAME.*\[$(basename "$library")\]" || fail "has no SONAME to be found by"
exported=$(nm -D --defined-only "$library" | awk '{print $3}' | sort | tr '\n' ' ')
expected=$(tr -d '{}' <"$2" | tr ' ;' '\n\n' | grep -E '^(nccl|gradprobe)' | sort | tr '\n' ' ')
[ -n "$expected" ] || fail "$2 was not understood"
[ "$exported" = "$expected" ] || fail "exports $exported instead of $expected"
if [ $# -gt 2 ] && [ -x "$3" ]; then
  # cuobjdump reads fat binaries in ELF sections of its own name only; the library's is in .rodata: read the file itself.
  list=$("$3" --list-elf --list-ptx "${4:?fat binary}" 2>/dev/null)
  for arch in 75 80 86 89 90 100 120; do
    echo "$list" | grep -q "sm_$arch\.cubin" || fail "no machine code for sm_$arch"
  done
  echo "$list" | grep -q '\.ptx' || fail "no PTX"
fi
echo "needs: $(echo $needed); exports: $exported"
