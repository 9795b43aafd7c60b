#!/usr/bin/env bash
# The demo: trains three times with gradprobe attached, compares the ranks, then plants a NaN and lets gradprobe find it.
#   tests/demo/run_demo.sh --build DIR --out DIR [--gpu | --nccl DIR] [--steps N] [--ranks N] [--seed N]
# --nccl: the folder of an unmodified libnccl.so.2, which is then used instead of the stand-in NCCL.
# Rings are kept in OUT/s1-1, OUT/s1-2, OUT/s1-3 and OUT/nan.
set -euo pipefail

usage() { sed -n '2,5s/^# *//p' "${BASH_SOURCE[0]}"; }
fail() { # exit status, message
  echo "run_demo.sh: $2" >&2
  exit "$1"
}

build='' out='' gpu=no nccl='' steps=60 ranks=8 seed=1 ranks_given=no
while (($# > 0)); do
  case $1 in
    --build | --out | --nccl | --steps | --ranks | --seed)
      (($# > 1)) || fail 2 "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --nccl) nccl=$2 ;;
        --steps) steps=$2 ;;
        --ranks) ranks=$2 ranks_given=yes ;;
        --seed) seed=$2 ;;
      esac
      shift 2
      ;;
    --gpu) gpu=yes && shift ;;
    -h | --help) usage && exit 0 ;;
    *) fail 2 "unknown option $1 (--help)" ;;
  esac
done
[[ -n $build && -n $out ]] || fail 2 "--build and --out are needed (--help)"
[[ $steps =~ ^[0-9]+$ && $steps -ge 4 ]] || fail 2 "--steps $steps: give a number of at least 4"
[[ $ranks =~ ^[0-9]+$ && $ranks -ge 2 && $ranks -le 64 ]] || fail 2 "--ranks $ranks: give a number from 2 to 64"

if [[ -n $nccl ]]; then
  [[ $gpu == no ]] || fail 2 "--nccl is for machines without a GPU; --gpu uses the NCCL of the machine"
  [[ -e $nccl/libnccl.so.2 ]] || fail 2 "--nccl $nccl: holds no libnccl.so.2; tests/real_nccl/fetch_wheels.py gets one"
  nccl=$(realpath -- "$nccl")
fi
build=$(realpath -e -- "$build" 2>/dev/null) || fail 2 "--build: no such folder; build first (./run build)"
train=("$build/bin/gradprobe-demo-train")
report=$build/bin/gradprobe-demo-report
gradprobe=$build/bin/gradprobe
plugin=$build/lib/libnccl-profiler-gradprobe.so
for file in "${train[0]}" "$report" "$gradprobe" "$plugin"; do
  [[ -e $file ]] || fail 2 "$file is missing; build first (./run build)"
done

if [[ -e $out && ! -d $out ]]; then fail 2 "--out $out: is not a folder"; fi
if [[ -n $(ls -A -- "$out" 2>/dev/null) ]]; then
  fail 2 "--out $out: holds files already; give a new or an empty folder"
fi
mkdir -p -- "$out" 2>/dev/null || fail 2 "--out $out: cannot be made; give a folder that can be written"
out=$(realpath -- "$out")

if [[ $gpu == yes ]]; then
  # NCCL wants a device for each rank.
  devices=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
  if [[ $ranks_given == no ]]; then ranks=$((devices < 8 ? devices : 8)); fi
  ((ranks >= 2)) || fail 2 "--gpu: comparing ranks needs at least 2 GPUs, found $devices; leave --gpu out"
elif [[ -n $nccl ]]; then
  train=("$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/../standin/with_standins.sh" "$build" "$nccl" "${train[@]}")
  # It refuses two ranks on one device.
  export STANDIN_CUDA_DEVICES=${STANDIN_CUDA_DEVICES:-$ranks}
else
  export LD_LIBRARY_PATH=$build/standin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
export NCCL_PROFILER_PLUGIN=$plugin
# Room for the whole run: 7 records a step of about 4.4 KB each, and some more.
export GRADPROBE_RING_MB=$((steps / 20 + 2))
# The stand-in's device is never behind the host, so on a loaded machine a gate can wait for a host thread's turn.
if [[ $gpu == no ]]; then export GRADPROBE_GATE_TIMEOUT=${GRADPROBE_GATE_TIMEOUT:-5000}; fi

training() { # folder, what it is, options: one run; its messages are shown when it fails
  local name=$1 title=$2 log=$out/$1.log status=0 began=$SECONDS
  shift 2
  echo "training: $title ..."
  if [[ -t 2 ]]; then
    GRADPROBE_DIR=$out/$name "${train[@]}" --ranks "$ranks" --seed "$seed" "$@" 2> >(tee "$log" >&2) || status=$?
  else
    GRADPROBE_DIR=$out/$name "${train[@]}" --ranks "$ranks" --seed "$seed" "$@" 2>"$log" || status=$?
  fi
  if ((status != 0)); then
    tail -n 20 "$log" >&2
    fail 1 "training failed; its messages: $log"
  fi
  echo "          done in $((SECONDS - began)) s"
}

nan_rank=$((ranks * 5 / 8))
nan_steps=$((steps < 16 ? steps : 16))
nan_step=$((nan_steps * 3 / 4))
training s1-1 "setting s1-1, all ranks shuffle and drop alike" --setting s1-1 --steps "$steps"
training s1-2 "setting s1-2, each rank shuffles for itself" --setting s1-2 --steps "$steps"
training s1-3 "setting s1-3, each rank shuffles and drops for itself" --setting s1-3 --steps "$steps"
training nan "faulty run, a NaN on rank $nan_rank in step $nan_step" \
  --setting s1-3 --steps "$nan_steps" --nan-rank "$nan_rank" --nan-step "$nan_step"

for name in s1-1 s1-2 s1-3; do
  "$gradprobe" compare --json "$out/$name" >"$out/$name.compare.jsonl" || fail 1 "gradprobe compare $out/$name failed"
done
"$gradprobe" compare --json --summary "$out/nan" >"$out/nan.summary.json" || fail 1 "gradprobe compare $out/nan failed"

echo
status=0
"$report" "$out" --nan-rank "$nan_rank" --nan-step "$nan_step" || status=$?
cat <<END

The rings, one file a rank, lie in $out/{s1-1,s1-2,s1-3,nan}. Look further with
  $gradprobe compare $out/s1-3
  $gradprobe dump $out/nan --rank $nan_rank --step $nan_step
  $gradprobe info $out/s1-3
END
exit "$status"
