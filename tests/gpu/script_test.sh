#!/usr/bin/env bash
# run_gpu.sh with a build folder, programs and a driver that are imitated: what it refuses, which driver it hands on,
# what its exit code says.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run_gpu.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

expect() { # expected exit code, text that the output must hold, arguments...
  local rc=0 want=$1 text=$2
  shift 2
  bash "$script" "$@" >"$scratch/out" 2>&1 </dev/null || rc=$?
  if [[ $rc != "$want" ]] || ! grep -qF -- "$text" "$scratch/out"; then
    echo "run_gpu.sh $*: exit $rc, expected $want and \"$text\"; it said:" && cat "$scratch/out"
    failures=$((failures + 1))
  fi
}

program() { # name, exit code
  mkdir -p "$scratch/build/bin"
  cat >"$scratch/build/bin/$1" <<END
#!/usr/bin/env bash
echo "$1 \$*: \$(realpath "\${LD_LIBRARY_PATH%%:*}/libcuda.so.1"), \${STANDIN_CUDA_CC-no stand-in}" | tee -a "$scratch/calls"
exit $2
END
  chmod +x "$scratch/build/bin/$1"
}

expect 2 "--build is needed"
expect 2 "unknown option --bild" --bild x
expect 2 "no such folder" --build "$scratch/none"
mkdir -p "$scratch/build/standin" "$scratch/driver"
expect 2 "is not a folder that CMake has configured" --build "$scratch/build"

touch "$scratch/build/standin/libcuda.so.1" "$scratch/driver/libcuda.so.1"
program kernel_test 0
program gpu_kernels 0
printf 'build kernel_test: phony\n' >"$scratch/build/build.ninja"
export STANDIN_CUDA_CC=75 LD_LIBRARY_PATH=$scratch/build/standin:$scratch/driver
expect 2 "has no target gpu_kernels" --build "$scratch/build"

printf 'build gpu_kernels: phony\n' >>"$scratch/build/build.ninja"
expect 0 "all right; figures in $scratch/build/gpu_kernels.json" --build "$scratch/build" -- --types f32
for call in "kernel_test --gtest_brief=1: $scratch/driver/libcuda.so.1, no stand-in" \
  "gpu_kernels --real-only --json $scratch/build/gpu_kernels.json --types f32: $scratch/driver/libcuda.so.1, no stand-in"; do
  if ! grep -qFx -- "$call" "$scratch/calls"; then
    echo "expected the call: $call" && cat "$scratch/calls"
    failures=$((failures + 1))
  fi
done

program kernel_test 1
expect 1 "kernel_test failed" --build "$scratch/build"
grep -qF "gpu_kernels" "$scratch/out" || { echo "the benchmark runs after a failed test too" && failures=$((failures + 1)); }
program kernel_test 0
program gpu_kernels 1
expect 1 "gpu_kernels failed" --build "$scratch/build"
exit $((failures > 0))
