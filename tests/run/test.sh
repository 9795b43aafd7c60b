# ./run test: what ctest is started with, and the exit code of each way to fail.
source "$(dirname "$0")/common.sh"

test_machine() {
  fresh_machine
  fake ctest <<'END'
echo "ctest $*" >>"$calls"
echo "asan=${ASAN_OPTIONS:-} ubsan=${UBSAN_OPTIONS:-} tsan=${TSAN_OPTIONS:-}" >>"$calls"
[[ ! -e $state/ctest-fails ]]
END
}

test_machine
run_it test
expect_rc 0 "dev"
expect_in calls "cmake --preset dev "
expect_in calls "ctest --test-dir build/dev --output-on-failure --no-tests=error --timeout 300"
expect_in calls "asan= ubsan= tsan="

for preset in asan ubsan tsan; do
  test_machine
  run_it test --preset $preset
  expect_rc 0 "$preset"
  expect_in calls "cmake --preset $preset "
  expect_in calls "cmake --build --preset $preset "
  expect_in calls "ctest --test-dir build/$preset "
  expect_in calls "$preset=halt_on_error=1"
done

test_machine
run_it test --preset asan -R ring -L unit -- --repeat until-fail:3
expect_rc 0 "chosen tests"
expect_in calls "-R ring -L unit --repeat until-fail:3"

touch "$state/ctest-fails"
run_it test
expect_rc 1 "a test fails"

test_machine
fake cmake <<'END'
case $1 in
  --version) echo "cmake version 3.25.1" ;;
  --build)
    for number in {1..200}; do echo "[$number/200] Building"; done
    printf 'FAILED: plugin/x.o \nx.cpp:3: error: what is broken\n'
    for number in {1..100}; do echo "ninja: line $number after the failure"; done
    exit 1 ;;
esac
END
run_it test
expect_rc 1 "the build fails"
expect_in err "building dev: failed"
expect_in err "x.cpp:3: error: what is broken"
expect_not_in err "[150/200] Building"
expect_in err "the whole log: $repo/build/log/dev-build.log"
expect_not_in calls "ctest"

fake cmake <<'END'
if [[ $1 == --version ]]; then echo "cmake version 3.25.1"; else echo "CMake Error: no such thing"; exit 1; fi
END
run_it build --preset release
expect_rc 1 "configuring fails"
expect_in err "CMake Error: no such thing"
expect_not_in out "built:"

fresh_machine
run_it build --preset fuzz
expect_rc 2 "no clang"
expect_lines err 1
expect_in err "needs clang++: sudo apt-get install -y clang"
fake clang++ <<<'exit 0'
run_it build --preset fuzz
expect_rc 0 "clang"
expect_in calls "cmake --build --preset fuzz "
finish
