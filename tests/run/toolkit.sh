# The CUDA Toolkit: CUDA_HOME, PATH, the fixed place, then wheels; what is too old is named and not used.
source "$(dirname "$0")/common.sh"

a=$scratch/opt/a b=$scratch/opt/b

fresh_machine
fake_nvcc "$a/bin/nvcc" 13.0
fake_nvcc "$b/bin/nvcc" 12.8
ln -s "$b/bin/nvcc" "$bin/nvcc"
cuda_home=$a run_it setup
expect_rc 0 "CUDA_HOME first"
expect_in out "CUDA Toolkit 13.0: $a/bin/nvcc"
run_it setup
expect_rc 0 "then PATH"
expect_in out "CUDA Toolkit 12.8: $bin/nvcc"
cuda_home=$scratch/nothing run_it setup
expect_rc 0 "CUDA_HOME without nvcc"
expect_in out "CUDA_HOME=$scratch/nothing has no bin/nvcc: looking elsewhere"
expect_in out "CUDA Toolkit 12.8: $bin/nvcc"
rm "$bin/nvcc"
run_it setup
expect_rc 0 "then the fixed place"
expect_in out "CUDA Toolkit 13.0: $scratch/opt/cuda/bin/nvcc"

for release in 12.7 11.8 9.2; do
  fresh_machine
  fake_nvcc "$a/bin/nvcc" "$release"
  cuda_home=$a run_it setup
  expect_rc 0 "release $release"
  expect_count out "$a/bin/nvcc is release $release, too old for sm_120 (12.8 or newer is needed): not used" 1
  expect_in out "CUDA Toolkit 13.0: $scratch/opt/cuda/bin/nvcc"
done

fresh_machine
fake_nvcc "$a/bin/nvcc" 13.0
rm "$a/include/cuda.h"
cuda_home=$a run_it setup
expect_rc 0 "no cuda.h"
expect_in out "$a/bin/nvcc has no cuda.h beside it: not used"
expect_in out "CUDA Toolkit 13.0: $scratch/opt/cuda/bin/nvcc"

# From wheels. The fake python3 makes a fake pip, which brings a fake nvcc.
machine_without_toolkit() {
  fresh_machine
  rm -r "$scratch/opt/cuda"
  fake_nvcc "$state/wheel/bin/nvcc" 13.0
  fake python3 <<'END'
echo "python3 $*" >>"$calls"
if [[ $1 == -c ]]; then [[ ! -e $state/no-venv ]]; exit; fi
mkdir -p "$3/bin"
mv "$state/pip" "$3/bin/pip"
END
  cat >"$state/pip" <<END
#!$BASH
echo "pip \$*" >>$calls
if [[ -e $state/pip-fails ]]; then echo "ERROR: no matching distribution"; exit 1; fi
mkdir -p $repo/.venv/lib/python3.11/site-packages/nvidia
ln -sfn $state/wheel $repo/.venv/lib/python3.11/site-packages/nvidia/cu13
END
  chmod +x "$state/pip"
}

machine_without_toolkit
run_it setup
expect_rc 0 "wheels"
expect_in out "no CUDA Toolkit 12.8 or newer on this machine: taking it from Python wheels"
expect_in out "CUDA Toolkit 13.0: $repo/.venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc"
for wheel in nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl; do
  expect_in calls "$wheel==13."
done
expect_count calls "nvcc -fatbin" 1
: >"$calls"
run_it setup
expect_rc 0 "wheels are there already"
expect_lines calls 0

machine_without_toolkit
touch "$state/pip-fails"
run_it setup
expect_rc 2 "pip fails"
expect_in err "ERROR: no matching distribution"
expect_in err "the Python wheels could not be installed: nvidia-cuda-nvcc==13."
rm "$state/pip-fails"
run_it setup
expect_rc 0 "pip works the next time"
expect_count calls "pip install" 2

machine_without_toolkit
touch "$state/no-venv"
fake apt-get <<<'echo "apt-get $*" >>"$calls"'
fake id <<<'echo 1000'
run_it setup
expect_rc 2 "no venv module and no root"
expect_in err "sudo apt-get install -y --no-install-recommends python3 python3-venv"
fake id <<<'echo 0'
run_it setup
expect_rc 0 "no venv module but root"
expect_in calls "install -y --no-install-recommends python3 python3-venv"

# Packages and then the venv module: two installations, one update.
machine_without_toolkit
touch "$state/no-venv"
echo libfmt-dev >"$state/missing"
fake apt-get <<<'echo "apt-get $*" >>"$calls"'
fake id <<<'echo 0'
run_it setup
expect_rc 0 "two installations"
expect_count calls " install -y" 2
expect_count calls " update" 1
finish
