#!/usr/bin/env bash
# run_torch.sh with an imitated build folder and PyTorch: what it refuses, and what it passes on.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run_torch.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

expect() { # expected exit code, text that the output must hold, arguments...
  local rc=0 want=$1 text=$2
  shift 2
  PATH=$scratch/bin:$PATH bash "$script" "$@" >"$scratch/out" 2>&1 </dev/null || rc=$?
  if [[ $rc != "$want" ]] || ! grep -qF -- "$text" "$scratch/out"; then
    echo "run_torch.sh $*: exit $rc, expected $want and \"$text\"; it said:" && cat "$scratch/out"
    failures=$((failures + 1))
  fi
  if ((want == 2)) && (($(wc -l <"$scratch/out") > 1)); then
    echo "run_torch.sh $*: more than one line:" && cat "$scratch/out"
    failures=$((failures + 1))
  fi
}

fake() { # path: the body of a bash script on standard input
  mkdir -p "$(dirname "$1")"
  printf '#!%s\n' "$BASH" >"$1"
  cat >>"$1"
  chmod +x "$1"
}

fake "$scratch/bin/nvidia-smi" <<<'exit 1'
export GRADPROBE_TORCH_DIR=$scratch/torch
expect 2 "--build is needed"
expect 2 "--build needs a value" --build
expect 2 "unknown option --bild" --bild x
expect 2 "no such folder" --build "$scratch/none"
mkdir -p "$scratch"/build/{bin,lib,standin}
expect 2 "bin/gradprobe is missing; build first" --build "$scratch/build"
touch "$scratch/build/bin/gradprobe" "$scratch"/build/lib/lib{nccl-profiler-gradprobe,gradprobe-preload}.so
expect 2 "standin/libcuda.so.1 is missing; build first" --build "$scratch/build"
touch "$scratch"/build/standin/lib{cuda.so.1,cudart.so.13,cudartaudit.so,standin_torch_kernels.so}

# No PyTorch, and too little room for it.
fake "$scratch/bin/df" <<<'printf "Avail\n1048576\n"'
expect 2 "1 GB free, PyTorch needs" --build "$scratch/build"

# PyTorch is there: the cases are started by its Python, with the stand-ins unless there are two GPUs.
fake "$scratch/torch/venv/bin/python" <<'END_OF_FAKE'
if [[ $1 == -c ]]; then exit 0; fi
echo "started: ${*:2}"
exit 1
END_OF_FAKE
runs="--build $scratch/build --runs $scratch/torch/runs"
expect 1 "started: $runs --stand-ins hook" --build "$scratch/build" hook
fake "$scratch/bin/nvidia-smi" <<<'printf "GPU 0\nGPU 1\n"'
expect 1 "started: $runs nan graph" --build "$scratch/build" nan graph
expect 1 "started: $runs --stand-ins" --build "$scratch/build" --stand-ins
exit $((failures > 0))
