#!/usr/bin/env bash
# A library without a symbol table can't be diverted: one line says which one and why. Only a library with NCCL's
# functions gets the line; the test's library has one of that name.
#   stripped_test.sh WITH_STANDINS BUILD LIBRARY
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
strip -o "$scratch/libstripped.so" "$3"
said=$("$1" "$2" - env LIBRARY="$scratch/libstripped.so" python3 -c '
import ctypes, os
ctypes.CDLL(os.environ["LIBRARY"])' 2>&1 | grep -v '^ERROR: ld.so' || true)
[[ $(wc -l <<<"$said") == 1 && $said == *"$scratch/libstripped.so carries device code and has no symbol table"* ]] || {
  echo "expected one line about the stripped library, got: $said"
  exit 1
}
