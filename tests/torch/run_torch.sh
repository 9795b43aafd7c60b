#!/usr/bin/env bash
# PyTorch's ways of calling NCCL under gradprobe: two ranks started by torchrun, on the NCCL that PyTorch brings. They
# run on GPUs where the machine has two, else on the stand-ins.
#   tests/torch/run_torch.sh --build DIR [--stand-ins] [CASE...]
# DIR: a build folder with tests (./run build makes build/dev). --stand-ins: use them even where there are GPUs.
# PyTorch (6 GB) is installed into build/torch/venv when it isn't there. The files of each case: build/torch/runs.
# Exit code: 0 all cases passed, 1 one failed, 2 wrong usage or something needed is missing. 5 minutes on two cores.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here torch_release=2.15.0 free_gb=8

usage() { sed -n '2,7s/^# *//p' "${BASH_SOURCE[0]}"; }
fail() { # exit status, message
  echo "run_torch.sh: $2" >&2
  exit "$1"
}

build='' options=() cases=()
while (($# > 0)); do
  case $1 in
    --build)
      (($# > 1)) || fail 2 "--build needs a value (--help)"
      build=$2
      shift 2
      ;;
    --stand-ins) options=(--stand-ins) && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) fail 2 "unknown option $1 (--help)" ;;
    *) cases+=("$1") && shift ;;
  esac
done
[[ -n $build ]] || fail 2 "--build is needed (--help)"
build=$(realpath -e -- "$build" 2>/dev/null) || fail 2 "--build: no such folder; build first (./run build)"

# NCCL wants a GPU for each rank.
if (($(nvidia-smi --list-gpus 2>/dev/null | wc -l) < 2)); then options=(--stand-ins); fi
needed=(bin/gradprobe lib/libnccl-profiler-gradprobe.so lib/libgradprobe-preload.so)
if ((${#options[@]} > 0)); then
  needed+=(standin/libcuda.so.1 standin/libcudart.so.13 standin/libcudartaudit.so standin/libstandin_torch_kernels.so)
fi
for file in "${needed[@]}"; do
  [[ -e $build/$file ]] || fail 2 "$build/$file is missing; build first (./run build)"
done

folder=$(realpath -m -- "${GRADPROBE_TORCH_DIR:-$here/../../build/torch}")
python=$folder/venv/bin/python
has_torch() {
  local question='import importlib.metadata, sys; sys.exit(importlib.metadata.version("torch") != sys.argv[1])'
  "$python" -c "$question" "$torch_release" 2>/dev/null
}
if ! has_torch; then
  mkdir -p -- "$folder" 2>/dev/null || fail 2 "$folder: cannot be made"
  free=$(($(df --output=avail -k -- "$folder" | tail -n 1) / 1024 / 1024))
  ((free >= free_gb)) ||
    fail 2 "$folder: $free GB free, PyTorch needs $free_gb; set GRADPROBE_TORCH_DIR to a larger disk"
  echo "run_torch.sh: installing PyTorch $torch_release into $folder/venv (log: $folder/pip.log) ..."
  python3 -m venv "$folder/venv" >"$folder/pip.log" 2>&1 || fail 2 "python3 -m venv failed; see $folder/pip.log"
  "$python" -m pip install --disable-pip-version-check "torch==$torch_release" numpy >>"$folder/pip.log" 2>&1 ||
    fail 2 "PyTorch cannot be installed (no network?); see $folder/pip.log"
  has_torch || fail 2 "$folder/venv has no PyTorch $torch_release after the installation; see $folder/pip.log"
fi
export PYTHONDONTWRITEBYTECODE=1
exec "$python" "$here/run_cases.py" --build "$build" --runs "$folder/runs" "${options[@]}" "${cases[@]}"
