# Bad usage: one line on standard error, exit 2, and nothing is set up. Help: standard output, exit 0.
source "$(dirname "$0")/common.sh"

wrong() { # expected text, arguments...
  fresh_machine
  echo libfmt-dev >"$state/missing" # setting up would complain about this one
  run_it "${@:2}"
  expect_rc 2 "$*"
  expect_lines err 1
  expect_lines out 0
  expect_in err "$1"
  expect_not_in err libfmt-dev
  [[ ! -e $repo/build ]] || fail "$*: made a build folder"
}

wrong "unknown command frobnicate" frobnicate
wrong "demo: unknown option --frobnicate" demo --frobnicate
wrong "demo: unknown option stray" demo stray
wrong "--out needs a value" demo --out
wrong "--out needs a value" demo --out ""
wrong "test: unknown option --frobnicate" test --frobnicate
wrong "--preset release: must be one of dev asan ubsan tsan" test --preset release
wrong "--preset needs a value" test --preset
wrong "-R needs a value" test -R
wrong "--nccl needs a value" demo --nccl
wrong "demo: --nccl is for machines without a GPU" demo --nccl 2.32.3 --gpu
wrong "--nccl-tests needs a value" test --nccl-tests
wrong "--nccl-tests nowhere: no such folder" test --nccl-tests nowhere
wrong "--nccl nowhere: no such folder" test --nccl-tests . --nccl nowhere
wrong "--nccl goes with --nccl-tests" test --nccl .
wrong "--torch and --nccl-tests: give one of them" test --torch --nccl-tests .
for other in "--preset asan" --gpu --all "-R ring"; do
  wrong "run instead of the other tests" test --torch $other
  wrong "run instead of the other tests" test $other --nccl-tests .
done
wrong "tests/torch/run_torch.sh is missing in this checkout" test --torch
wrong "build: unknown option --gpu" build --gpu
wrong "--preset nosuch: must be one of" build --preset nosuch
wrong "setup: takes no options" setup now
wrong "lint: takes no options" lint --fix

fresh_machine
run_it
expect_rc 2 "no command"
expect_in err "usage: ./run COMMAND"

for arguments in help --help -h "demo --help" "test --preset asan -h"; do
  fresh_machine
  echo libfmt-dev >"$state/missing"
  run_it $arguments
  expect_rc 0 "$arguments"
  expect_lines err 0
  expect_in out "usage: ./run COMMAND"
  expect_in out "exit code: 0 all right, 1 a build, a test or the demo failed, 2 wrong usage"
done

fresh_machine
rc=0
env -i PATH="$bin" GRADPROBE_JOBS=many "$BASH" "$repo/run" setup >"$scratch/out" 2>"$scratch/err" || rc=$?
expect_rc 2 "GRADPROBE_JOBS"
expect_in err "GRADPROBE_JOBS=many: must be a number"
finish
