#!/bin/sh
# Runs the Python reader of docs/FORMAT.md on the golden ring and looks for the values that the ring was made with.
# Usage: format_doc_test.sh FORMAT.md RING. Exit code 77 (skipped) without python3.
set -eu
command -v python3 >/dev/null || exit 77
script=$(mktemp)
trap 'rm -f "$script"' EXIT
awk '/^```python$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1" >"$script"
test -s "$script"
out=$(python3 "$script" "$2")
printf '%s\n' "$out"
for expected in \
  'communicator 0123456789abcdef rank 3 of 8, 8 records written, finalized: True' \
  '2 scalar op 2 step 0 values 0.625' \
  '3 step op 0 step 0' \
  '4 collective op 3 step 1 count 100 norm 3.0 nan 0 sketch 256' \
  '7 collective op 6 step 2 count 100 norm 4.0 nan 2 sketch 256'; do
  printf '%s\n' "$out" | grep -qxF "$expected" || { echo "missing: $expected"; exit 1; }
done
