# Shared by the tests of ./run: a scratch copy of the script and a PATH on which everything is a fake or chosen.
#   $scratch  temporary folder        $repo   folder with the copy of ./run
#   $bin      the whole PATH          $calls  log of what the fakes were called with
#   $settings more environment for it: (CI=true ...)
set -euo pipefail

: "${SOURCE_DIR:=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}" "${CMAKE:=cmake}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
repo=$scratch/repo bin=$scratch/bin calls=$scratch/calls state=$scratch/state
failures=0 settings=()

real_tools=(awk basename bash cat cut date dirname env grep head id ln ls mkdir mktemp mv nproc readlink rm sed sleep sort
  tail touch tr uname)

fake() { # name: the body of a bash script on standard input; it may use $calls, $state and $bin
  # Removed first: it may be a link to the machine's own program, which must not be written through.
  rm -f "$bin/$1"
  printf '#!%s\ncalls=%q state=%q bin=%q\n' "$BASH" "$calls" "$state" "$bin" >"$bin/$1"
  cat >>"$bin/$1"
  chmod +x "$bin/$1"
}

fake_nvcc() { # path release: with cuda.h beside it
  local home
  home=$(dirname "$(dirname "$1")")
  mkdir -p "$(dirname "$1")" "$home/include"
  touch "$home/include/cuda.h"
  cat >"$1" <<END
#!$BASH
case \$* in
  --version) echo "Cuda compilation tools, release $2, V$2.0" ;;
  *--dryrun*) echo "#\$ TOP=$home" >&2 ;;
  *) echo "nvcc \$*" >>$calls ;;
esac
END
  chmod +x "$1"
}

# A machine with all packages, CMake 3.25 and, as the third place that is searched, a toolkit of release 13.0.
fresh_machine() {
  local tool
  rm -rf "$repo" "$bin" "$state" "$calls" "$scratch/opt"
  mkdir -p "$repo" "$bin" "$state" "$scratch/opt"
  touch "$calls"
  # Fixed paths of the machine that the tests run on are moved into the scratch folder.
  sed "s|/usr/local/cuda/|$scratch/opt/cuda/|; s|/dev/nvidiactl|$state/nvidiactl|; s|/dev/dxg|$state/dxg|" \
    "$SOURCE_DIR/run" >"$repo/run"
  if grep -qE '/usr/local/cuda/|/dev/(nvidiactl|dxg)' "$repo/run"; then fail "the copy of ./run looks at the machine"; fi
  for tool in "${real_tools[@]}"; do ln -s "$(type -P "$tool")" "$bin/$tool"; done
  fake cmake <<'END'
if [[ $1 == --version ]]; then
  echo "cmake version 3.25.1"
else
  echo "cmake $*" >>"$calls"
fi
END
  fake ninja <<<'exit 0'
  fake g++ <<<'exit 0'
  fake python3 <<<'exit 0'
  fake ldconfig <<<'exit 0'
  # Installed is every package except those named in $state/missing.
  fake dpkg-query <<'END'
if grep -qFx "${!#}" "$state/missing" 2>/dev/null; then exit 1; fi
echo installed
END
  fake_nvcc "$scratch/opt/cuda/bin/nvcc" 13.0
}

# run_it ARGS...: starts the copy; sets rc, and the files $scratch/out and $scratch/err.
run_it() {
  rc=0
  env -i PATH="$bin" HOME="$scratch" ${cuda_home:+CUDA_HOME="$cuda_home"} \
    ${library_path:+LD_LIBRARY_PATH="$library_path"} "${settings[@]}" "$BASH" "$repo/run" "$@" \
    >"$scratch/out" 2>"$scratch/err" </dev/null || rc=$?
}

fail() {
  failures=$((failures + 1))
  echo "FAILED: $*"
  for file in out err calls; do
    if [[ -s $scratch/$file ]]; then sed "s/^/  $file: /" "$scratch/$file"; fi
  done
}

expect_rc() { [[ $rc == "$1" ]] || fail "${*:2}: exit code $rc instead of $1"; }
expect_in() { grep -qF -- "$2" "$scratch/$1" || fail "$1 lacks: $2"; }
expect_not_in() { ! grep -qF -- "$2" "$scratch/$1" || fail "$1 holds: $2"; }
expect_lines() { [[ $(wc -l <"$scratch/$1") == "$2" ]] || fail "$1 has not $2 line(s)"; }
expect_count() { [[ $(grep -cF -- "$2" "$scratch/$1") == "$3" ]] || fail "$1 has not $3 time(s): $2"; }

finish() {
  if ((failures > 0)); then
    echo "$failures expectation(s) failed"
    exit 1
  fi
  echo "all as expected"
}
