#!/usr/bin/env bash
# The plugin lives in other people's processes: it must need libc only, export NCCL's entry points and gradprobe.h's only, carry machine
# code for every supported architecture and stay loaded.   needed.sh PLUGIN [CUOBJDUMP]
set -eu
plugin=$1
fail() { echo "$plugin: $*" >&2; exit 1; }
needed=$(readelf -d "$plugin" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
for library in $needed; do
  case $library in
    libc.so.6 | ld-linux-*.so.*) ;; # the loader is part of libc
    *) fail "needs $library" ;;
  esac
done
echo "$needed" | grep -qx libc.so.6 || fail "does not even need libc: readelf's output was not understood"
readelf -d "$plugin" | grep -q NODELETE || fail "can be unloaded (no NODELETE)"
readelf -d "$plugin" | grep -q 'SONAME.*libnccl-profiler-gradprobe.so' || fail "has no SONAME to be found by"
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort | tr '\n' ' ')
expected="gradprobe_phase gradprobe_scalar gradprobe_step gradprobe_version ncclProfiler_v1 ncclProfiler_v2 ncclProfiler_v3 ncclProfiler_v4 ncclProfiler_v5 ncclProfiler_v6 "
[ "$exported" = "$expected" ] || fail "exports $exported"
if [ $# -gt 1 ] && [ -x "$2" ]; then
  # cuobjdump reads fat binaries in ELF sections of its own name only; the plugin's is in .rodata: read the file itself.
  list=$("$2" --list-elf --list-ptx "${3:?fat binary}" 2>/dev/null)
  for arch in 75 80 86 89 90 100 120; do
    echo "$list" | grep -q "sm_$arch\.cubin" || fail "no machine code for sm_$arch"
  done
  echo "$list" | grep -q '\.ptx' || fail "no PTX"
fi
echo "needs: $(echo $needed); exports: $exported"
