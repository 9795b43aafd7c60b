# --gpu: one line where there is no usable GPU; otherwise a real NCCL that is new enough, from the machine or a wheel.
source "$(dirname "$0")/common.sh"

machine_without_driver() {
  fresh_machine
  mkdir -p "$repo/tests/demo" "$repo/.venv/bin"
  echo "echo \"run_demo \$* LD_LIBRARY_PATH=\$LD_LIBRARY_PATH\" >>$calls" >"$repo/tests/demo/run_demo.sh"
  # A .venv whose pip brings the NCCL that it is asked for.
  cat >"$repo/.venv/bin/pip" <<END
#!$BASH
echo "pip \$*" >>$calls
mkdir -p $repo/.venv/lib/python3.11/site-packages/nvidia/nccl/lib
touch $repo/.venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2
END
  chmod +x "$repo/.venv/bin/pip"
}

machine_with_gpu() { # CUDA version of the driver
  machine_without_driver
  fake ldconfig <<<"printf '\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n'; cat $state/nccl 2>/dev/null"
  touch "$state/nvidiactl"
  fake nvidia-smi <<<"[[ \$* == -L ]] && echo 'GPU 0: imitated' || echo '| Driver Version: 1  CUDA Version: $1 |'"
}

refused() { # what err says
  local command
  for command in demo test; do
    : >"$calls"
    run_it $command --gpu
    expect_rc 2 "$1"
    expect_lines err 1
    expect_in err "$1"
    expect_lines calls 0
  done
}

machine_without_driver
refused "--gpu: no libcuda.so.1 on this machine"
machine_with_gpu 13.0
rm "$state/nvidiactl"
refused "--gpu: a driver library but no GPU"
machine_with_gpu 13.0
fake nvidia-smi <<<'echo "No devices were found"; exit 6'
refused "--gpu: nvidia-smi lists no GPU"

nccl() { # folder release
  mkdir -p "$scratch/opt/$1"
  printf 'ELF\0\nNCCL version %s+cuda13.0\0' "$2" >"$scratch/opt/$1/libnccl.so.2"
}

machine_with_gpu 13.0
nccl path 2.29.7
nccl system 2.28.9
echo "	libnccl.so.2 (libc6,x86-64) => $scratch/opt/system/libnccl.so.2" >"$state/nccl"
run_it demo --gpu
expect_rc 0 "NCCL of the system"
expect_in out "NCCL 2.28.9: $scratch/opt/system/libnccl.so.2"
expect_in calls "LD_LIBRARY_PATH=$scratch/opt/system"
expect_in calls "--gpu"
library_path=$scratch/opt/none:$scratch/opt/path run_it demo --gpu
expect_rc 0 "NCCL of LD_LIBRARY_PATH"
expect_in calls "LD_LIBRARY_PATH=$scratch/opt/path:$scratch/opt/none:$scratch/opt/path"
expect_not_in calls "pip"

for driver in 13.0 12.8; do
  machine_with_gpu $driver
  nccl path 2.27.7
  library_path=$scratch/opt/path run_it demo --gpu
  expect_rc 0 "NCCL that is too old"
  expect_in out "$scratch/opt/path/libnccl.so.2 is NCCL 2.27.7, and measuring needs 2.28 or newer: not used"
  expect_in calls "nvidia-nccl-cu${driver%.*}==2."
  expect_in calls "LD_LIBRARY_PATH=$repo/.venv/lib/python3.11/site-packages/nvidia/nccl/lib:$scratch/opt/path"
done
finish
