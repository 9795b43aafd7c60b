#!/usr/bin/env bash
# run_nccl_tests.py on an imitated program and the stand-in NCCL: what it refuses, that it passes a good run, and
# that it sees each difference.
#   script_test.sh BUILD
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run_nccl_tests.py
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

expect() { # expected exit code, text that the output must hold, arguments...
  local rc=0 want=$1 text=$2
  shift 2
  python3 -B "$script" --stand-ins "$@" >"$scratch/out" 2>&1 </dev/null || rc=$?
  if [[ $rc != "$want" ]] || ! grep -qE -- "$text" "$scratch/out"; then
    echo "run_nccl_tests.py $*: exit $rc, expected $want and \"$text\"; it said:" && cat "$scratch/out"
    failures=$((failures + 1))
  fi
  if ((want == 2)) && grep -q Traceback "$scratch/out"; then
    echo "run_nccl_tests.py $*: no clear line:" && cat "$scratch/out"
    failures=$((failures + 1))
  fi
}

programs=$scratch/programs
nccl=$build/standin
expect 2 "the following arguments are required: --build"
expect 2 "no such folder; build first" --build "$scratch/none" --tests "$programs" --nccl "$nccl"
expect 2 "holds no libnccl.so.2, nor does its lib/" --build "$build" --tests "$programs" --nccl "$scratch"
expect 2 "no such folder; give a checkout of nccl-tests or a folder" --build "$build" --tests "$programs" --nccl "$nccl"
mkdir "$programs"
expect 2 "bin/gradprobe is missing; build first" --build "$scratch" --tests "$programs" --nccl "$nccl"
expect 2 "holds no executable \*_perf" --build "$build" --tests "$programs" --nccl "$nccl"
printf '#!/bin/sh\n' >"$programs/text_perf" && chmod +x "$programs/text_perf"
expect 2 "text_perf: doesn't load libnccl.so.2" --build "$build" --tests "$programs" --nccl "$nccl"
rm "$programs/text_perf"

cp "$build/tests/nccl_tests/fake_perf" "$programs/fake_perf"
expect 2 "no program has such a name" --build "$build" --tests "$programs" --nccl "$nccl" --program all_gather
arguments=(--build "$build" --tests "$programs" --nccl "$nccl" --types float --runs "$scratch/runs")
expect 0 "^2 of 2 all right" "${arguments[@]}"
grep -qE '^fake_perf +float +1 process, 2 GPUs +0 +10 +10 +5$' "$scratch/out" || {
  echo "the row of a good run isn't as expected:" && cat "$scratch/out" && failures=$((failures + 1))
}
FAKE_PERF=wrong expect 1 "FAIL with gradprobe: #wrong 1" "${arguments[@]}"
FAKE_PERF=exit expect 1 "FAIL exit code 0 without, 3 with gradprobe" "${arguments[@]}"
FAKE_PERF=hidden expect 1 "FAIL rank 0: 5 AllReduce to measure, 6 measured" "${arguments[@]}"
FAKE_PERF=checkless expect 1 "FAIL without gradprobe: exit code 0, no row of results" "${arguments[@]}"
exit $((failures > 0))
