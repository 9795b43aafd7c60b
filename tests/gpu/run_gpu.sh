#!/usr/bin/env bash
# On a real GPU: the kernels' tests against the float64 references, then the benchmark with its own checks.
#   tests/gpu/run_gpu.sh --build DIR [--out FILE.json] [-- ARGS of gpu_kernels]
# DIR: a build folder that CMake has configured (./run build makes build/dev). The figures land in DIR/gpu_kernels.json.
# Exit code: 0 all right, 1 a wrong result or a failure, 2 wrong usage.
set -euo pipefail

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

# Nothing of the stand-ins may be found, nor may their settings be believed.
while read -r variable; do unset "$variable"; done < <(compgen -e STANDIN_)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$(tr : '\n' <<<"$LD_LIBRARY_PATH" | { grep -vFx "$build/standin" || true; } | paste -sd :)

known=$(ninja -C "$build" -t targets all | sed -n 's/: phony$//p')
for target in kernel_test gpu_kernels; do
  grep -qFx "$target" <<<"$known" || fail 2 "$build has no target $target: configure with tests and no sanitizer (dev)"
done
cmake --build "$build" --target kernel_test gpu_kernels || fail 1 "the build failed"

rc=0
# Cases about the stand-in's own kinds of device are left out: there is one device here.
timeout 300 "$build/bin/kernel_test" --gtest_brief=1 || { echo "run_gpu.sh: kernel_test failed" >&2 && rc=1; }
timeout 360 "$build/bin/gpu_kernels" --json "$out" "${more[@]}" || { echo "run_gpu.sh: gpu_kernels failed" >&2 && rc=1; }
((rc != 0)) || echo "run_gpu.sh: all right; figures in $out"
exit "$rc"
