#!/bin/sh
# Runs the Python reader of docs/FORMAT.md on the golden rings and looks for the values that they were made with.
# Usage: format_doc_test.sh FORMAT.md FOLDER. Exit code 77 (skipped) without python3.
set -eu
command -v python3 >/dev/null || exit 77
script=$(mktemp)
trap 'rm -f "$script"' EXIT
awk '/^```python$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1" >"$script"
test -s "$script"
export PYTHONIOENCODING=utf-8
out=$(python3 "$script" "$2/ring-v1.ring"; python3 "$script" "$2/ring-v1-results.ring"; python3 "$script" "$2/ring-v1-marks.ring")
printf '%s\n' "$out"
for expected in \
  'communicator 0123456789abcdef rank 3 of 8, 8 records written, finalized: True' \
  '2 scalar op 2 step 0 values 0.625' \
  '3 step op 0 step 0' \
  '4 collective op 3 step 1 count 100 norm 3.0 nan 0 sketch 256' \
  '7 collective op 6 step 2 count 100 norm 4.0 nan 2 sketch 256' \
  'communicator 0123456789abcdef rank 3 of 8, 6 records written, finalized: True' \
  '2 result op 0 step 0 count 1000 norm 2.5 nan 0 sketch 256 fingerprint 0xfedcba9876543210' \
  '4 result op 1 step 0' \
  '5 result op 2 step 0 count 1 norm 0.8 nan 0 sketch 0 fingerprint 0x00000000d9833333' \
  '0 mark op 0 step - phase Aufwärmen' \
  '4 mark op 2 step 40 scalar loss 0.625' \
  '5 mark op 2 step 41 step number 7' \
  '7 mark op 3 step 41 scalar learning rate nan'; do
  printf '%s\n' "$out" | grep -qxF "$expected" || { echo "missing: $expected"; exit 1; }
done
