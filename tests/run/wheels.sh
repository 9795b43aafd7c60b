# The wheels of the real NCCL in ./run: when they are fetched, what it prints and returns without them, and how it names
# the tests that did not run.
source "$(dirname "$0")/common.sh"

# A machine whose fetch_wheels.py is $state/fetch (a bash script, given what it is called with) and whose ctest has
# tests on the real NCCL unless $state/other-tests exists.
wheels_machine() {
  fresh_machine
  mkdir -p "$repo/tests/real_nccl"
  touch "$repo/tests/real_nccl/fetch_wheels.py"
  fake python3 <<'END'
if [[ $* == "-m pip --version" ]]; then [[ ! -e $state/no-pip ]]; exit; fi
if [[ $1 == -c ]]; then exit 0; fi
if [[ $* == "-m venv "* ]]; then
  mkdir -p "$3/bin"
  cp "$bin/python3" "$3/bin/python3"
  cp "$bin/python3" "$3/bin/pip"
  exit
fi
[[ $* == */real_nccl/fetch_wheels.py* ]] || exit 0
[[ $2 == --list ]] || echo "fetch ${*:2} by $0 cache=${GRADPROBE_CACHE:-}" >>"$calls"
source "$state/fetch"
END
  ln -s "$(type -P cp)" "$bin/cp"
  echo 'exit 0' >"$state/fetch"
  fake ctest <<'END'
if [[ $* == *" -N "* ]]; then
  echo "chosen from: $*" >>"$calls"
  if [[ -e $state/other-tests ]]; then echo "Total Tests: 0"; else echo "Total Tests: 7"; fi
  exit
fi
echo "ctest $* all=${GRADPROBE_TEST_ALL:-}" >>"$calls"
if [[ -e $state/ctest-log ]]; then
  cp "$state/ctest-log" build/log/dev-ctest.log
  mkdir -p build/dev/Testing/Temporary
  cp "$state/LastTest.log" build/dev/Testing/Temporary/LastTest.log
fi
[[ ! -e $state/ctest-fails ]]
END
}

no_network() {
  cat >"$state/fetch" <<'END'
echo "[1/8] NCCL 9.9.9-cu13"
echo "fetch_wheels: NCCL 9.9.9-cu13: pip couldn't download it (no network?)" >&2
exit 3
END
}

wheels_machine
run_it test -R ring -- --repeat until-fail:3
expect_rc 0 "wheels are fetched"
expect_in calls "chosen from: --test-dir build/dev -N -L ^real_nccl$ -R ring --repeat until-fail:3"
expect_in calls "fetch  by $bin/python3 cache="
expect_in calls "all="
expect_lines err 0

wheels_machine
settings=(GRADPROBE_CACHE=kept)
cd "$scratch"
run_it test --all
settings=()
expect_rc 0 "cache and --all"
expect_in calls "cache=$scratch/kept"
expect_in calls "all=1"

wheels_machine
touch "$state/other-tests"
run_it test -L unit
expect_rc 0 "no test of the real NCCL is selected"
expect_not_in calls "fetch"

wheels_machine
run_it test --preset asan
expect_rc 0 "sanitizers"
expect_not_in calls "fetch"

wheels_machine
touch "$state/no-pip"
run_it test
expect_rc 0 "a Python without pip"
expect_in calls "fetch  by $repo/.venv/bin/python3"

wheels_machine
no_network
run_it test
expect_rc 0 "no network"
expect_lines err 2
expect_in err "run: NCCL 9.9.9-cu13: pip couldn't download it (no network?)"
expect_in err "NCCL's wheels are missing: the tests that need them are skipped"
expect_in calls "ctest --test-dir build/dev --output-on-failure"

settings=(CI=true)
run_it test
settings=()
expect_rc 1 "no network with CI=true"
expect_in err "NCCL's wheels are missing, which is a failure where CI=true"
expect_count calls "ctest --test-dir build/dev --output-on-failure" 2

wheels_machine
echo 'echo "fetch_wheels: NCCL 9.9.9-cu13: of another hash" >&2; exit 1' >"$state/fetch"
run_it test
expect_rc 1 "a wrong hash is a failure"
expect_in err "run: NCCL 9.9.9-cu13: of another hash"
expect_in err "fetching NCCL's wheels failed; the whole log: $repo/build/log/wheels.log"

# What did not run is told, with the reason that the test gave: a line of its own, or gtest's.
wheels_machine
printf '%s\n' "100% tests passed" "" "The following tests did not run:" \
  "	  1 - real_nccl.a (Skipped)" "	  2 - Suite/Name.of it/one two (Skipped)" "	  3 - silent (Disabled)" >"$state/ctest-log"
printf '%s\n' "1/4 Test: real_nccl.a" "Output:" "skipped: no wheel" "<end of output>" \
  "2/4 Test: Suite/Name.of it/one two" "Output:" "/src/x.cpp:12: Skipped" "needs root" "" "[  SKIPPED ] x" \
  "3/4 Test: silent" "4/4 Test: runs" "skipped: another's line" >"$state/LastTest.log"
run_it test
expect_rc 0 "skipped tests"
expect_in out "run: not run:"
expect_in out "  real_nccl.a: no wheel"
expect_in out "  Suite/Name.of it/one two: needs root"
expect_in out "  silent: no reason given"
expect_not_in out "runs:"
expect_not_in out "another's line"

# ./run demo --nccl
demo_machine() {
  wheels_machine
  mkdir -p "$repo/tests/demo"
  echo "echo \"run_demo \$*\" >>$calls" >"$repo/tests/demo/run_demo.sh"
  cat >"$state/fetch" <<'END'
if [[ $2 != --list ]]; then exit; fi
if [[ $3 != 9.9.9 ]]; then echo "fetch_wheels: $3: not among 9.9.9-cu13" >&2; exit 2; fi
echo "9.9.9-cu13 always $(cat "$state/there" 2>/dev/null || echo missing)"
END
}

demo_machine
run_it demo --nccl 9.9.9 -- --ranks 4
expect_rc 0 "demo on a wheel"
expect_in calls "fetch 9.9.9 by"
expect_in calls "--nccl $repo/build/wheels/9.9.9-cu13 --ranks 4"
echo there >"$state/there"
: >"$calls"
settings=(GRADPROBE_CACHE=$scratch/kept)
run_it demo --nccl 9.9.9
settings=()
expect_rc 0 "demo on a wheel that is there"
expect_not_in calls "fetch 9.9.9"
expect_in calls "--nccl $scratch/kept/9.9.9-cu13"
run_it demo --nccl 1.0
expect_rc 2 "demo on an unknown version"
expect_lines err 1
expect_in err "run: --nccl: 1.0: not among 9.9.9-cu13"

# The scripts that run instead of ctest's tests.
wheels_machine
mkdir -p "$repo/tests/torch" "$repo/tests/nccl_tests" "$scratch/checkout" "$scratch/nccl"
echo "echo \"run_torch \$*\" >>$calls; exit \"\$(cat $state/exits 2>/dev/null || echo 0)\"" >"$repo/tests/torch/run_torch.sh"
touch "$repo/tests/nccl_tests/run_nccl_tests.py"
fake python3 <<<'echo "python3 $*" >>"$calls"'
cd "$scratch"
run_it test --torch -- one two
expect_rc 0 "--torch"
expect_in calls "cmake --build --preset dev"
expect_in calls "run_torch --build $repo/build/dev one two"
expect_not_in calls "ctest"
echo 77 >"$state/exits"
run_it test --torch
expect_rc 1 "--torch fails"
run_it test --nccl-tests checkout
expect_rc 0 "--nccl-tests"
expect_in calls "run_nccl_tests.py --build $repo/build/dev --tests $scratch/checkout"
expect_not_in calls "--nccl $scratch"
run_it test --nccl-tests "$scratch/checkout" --nccl nccl -- --types float
expect_rc 0 "--nccl-tests with --nccl"
expect_in calls "--tests $scratch/checkout --nccl $scratch/nccl --types float"
finish
