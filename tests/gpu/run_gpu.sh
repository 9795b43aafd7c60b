#!/usr/bin/env bash
# On a real GPU: the kernels' tests against the float64 references, then the benchmark with its own checks.
#   tests/gpu/run_gpu.sh --build DIR [--out FILE.json] [-- ARGS of gpu_kernels]
# DIR: a build folder that CMake has configured (./run build makes build/dev). The figures land in DIR/gpu_kernels.json.
# Exit code: 0 all right, 1 a wrong result or a failure, 2 wrong usage or no driver. At most 12 minutes and the build.
set -euo pipefail

readonly test_seconds=360 benchmark_seconds=360

usage() { sed -n '2,5s/^# *//p' "${BASH_SOURCE[0]}"; }
fail() { # exit status, message
  echo "run_gpu.sh: $2" >&2
  exit "$1"
}

build='' out='' more=()
while (($# > 0)); do
  case $1 in
    --build | --out)
      (($# > 1)) || fail 2 "$1 needs a value (--help)"
      if [[ $1 == --build ]]; then build=$2; else out=$2; fi
      shift 2
      ;;
    --) more=("${@:2}") && break ;;
    -h | --help) usage && exit 0 ;;
    *) fail 2 "unknown option $1 (--help)" ;;
  esac
done
[[ -n $build ]] || fail 2 "--build is needed (--help)"
build=$(realpath -e -- "$build" 2>/dev/null) || fail 2 "--build: no such folder; build first (./run build)"
[[ -e $build/build.ninja ]] || fail 2 "--build $build: is not a folder that CMake has configured for Ninja"
: "${out:=$build/gpu_kernels.json}"

# The real driver's library, from LD_LIBRARY_PATH or the loader's cache, never the stand-in.
real_driver() {
  local folder folders=() library
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${folders[@]}"; do
    library=$(realpath -e -- "$folder/libcuda.so.1" 2>/dev/null) || continue
    if [[ $library != "$build"/* ]]; then
      echo "$library"
      return
    fi
  done
  PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | sed -n 's|^\s*libcuda\.so\.1 .*x86-64.* => ||p' | head -n 1
}
driver=$(real_driver)
[[ -n $driver ]] || fail 2 "no libcuda.so.1 on this machine: install NVIDIA's driver"

# Programs of the build look for the stand-in first; only LD_LIBRARY_PATH comes before that.
drivers=$(mktemp -d)
trap 'rm -rf "$drivers"' EXIT
ln -s "$driver" "$drivers/libcuda.so.1"
export LD_LIBRARY_PATH=$drivers${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
while read -r variable; do unset "$variable"; done < <(compgen -e STANDIN_)

known=$(ninja -C "$build" -t targets all | sed -n 's/: phony$//p')
for target in kernel_test gpu_kernels; do
  grep -qFx "$target" <<<"$known" || fail 2 "$build has no target $target: configure with tests and no sanitizer (dev)"
done
ninja -C "$build" kernel_test gpu_kernels || fail 1 "the build failed"

rc=0
echo "run_gpu.sh: kernel_test on $driver"
timeout "$test_seconds" "$build/bin/kernel_test" --gtest_brief=1 || rc=$?
((rc == 0)) || echo "run_gpu.sh: kernel_test failed ($rc; 124: took too long)" >&2
benchmark=0
timeout "$benchmark_seconds" "$build/bin/gpu_kernels" --real-only --json "$out" "${more[@]}" || benchmark=$?
((benchmark == 0)) || echo "run_gpu.sh: gpu_kernels failed ($benchmark; 124: took too long)" >&2
if ((rc != 0 || benchmark != 0)); then exit 1; fi
echo "run_gpu.sh: all right; figures in $out"
