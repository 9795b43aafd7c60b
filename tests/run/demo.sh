# ./run demo: where the ring files go, what is passed on, and that no folder with files in it is touched.
source "$(dirname "$0")/common.sh"

demo_machine() {
  fresh_machine
  mkdir -p "$repo/tests/demo"
  cat >"$repo/tests/demo/run_demo.sh" <<END
echo "run_demo \$*" >>$calls
while [[ \$1 != --out ]]; do shift; done
[[ -d \$2 && -z \$(ls -A "\$2") ]] || exit 9
touch "\$2/ring"
if read -r line; then exit 8; fi
exit "\$(cat $state/demo-exits 2>/dev/null || echo 0)"
END
  fake ninja <<'END'
printf '%s\n' 'gradprobe: phony' 'gradprobe_plugin: phony' 'gradprobe-demo-train: phony' 'standin_cuda: phony' \
  'standin_nccl: phony' 'bin/gradprobe: CXX_EXECUTABLE_LINKER'
END
}

demo_machine
fake date <<<'echo 20260102-030405'
run_it demo
expect_rc 0 "default folder"
expect_in calls "cmake --preset dev -DGRADPROBE_NVCC=$scratch/opt/cuda/bin/nvcc"
expect_in calls "--target gradprobe gradprobe_plugin gradprobe-demo-train standin_cuda standin_nccl"
expect_in calls "run_demo --build $repo/build/dev --out $repo/build/demo-20260102-030405"
run_it demo
expect_rc 0 "default folder, a second time in the same second"
expect_in calls "--out $repo/build/demo-20260102-030405-2"

: >"$calls"
cd "$scratch"
run_it demo --out my/rings -- --ranks 4
expect_rc 0 "relative folder"
expect_in calls "run_demo --build $repo/build/dev --out $scratch/my/rings --ranks 4"
expect_not_in calls "--gpu"

: >"$calls"
run_it demo --out my/rings
expect_rc 2 "folder with files"
expect_lines err 1
expect_in err "--out $scratch/my/rings: holds files already"
expect_lines calls 0

run_it demo --out "$repo/run"
expect_rc 2 "a file"
expect_in err "--out $repo/run: is not a folder"
run_it demo --out "$repo/run/below"
expect_rc 2 "below a file"
expect_in err "--out $repo/run/below: cannot be made"

echo 77 >"$state/demo-exits"
run_it demo
expect_rc 1 "the demo fails"
echo 2 >"$state/demo-exits"
run_it demo -- --bad
expect_rc 2 "the demo refuses an argument"

finish
