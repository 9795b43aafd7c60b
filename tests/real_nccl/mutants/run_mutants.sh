#!/usr/bin/env bash
# Shows that the comparison can fail: builds the plugin with each fault of this folder, runs it on the real NCCL and
# expects the complaint that the fault's patch names.
#   run_mutants.sh BUILD WHEEL [PATCH...]       WHEEL: a folder's name, such as 2.32.3-cu13
# Only the mutated source is compiled again, with the build's own command; the rest comes from the build's archive. The
# plugin as it is must pass first, with the same modes and settings.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$(cd "$1" && pwd)
wheel=$2
shift 2
wheels=${GRADPROBE_CACHE:-$root/build/wheels}
if [[ ! -e $wheels/$wheel/libnccl.so.2 ]]; then
  echo "skipped: $wheels/$wheel/libnccl.so.2 is not there (tests/real_nccl/fetch_wheels.py fetches it)"
  if [[ ${CI:-} == true ]]; then exit 1; fi
  exit 77
fi
work=$(mktemp -d "$build/mutants.XXXXXX")
trap 'rm -rf "$work"' EXIT
(($#)) || set -- "$here"/*.patch

# line NAME FILE: what follows "NAME: " at the beginning of a patch.
line() { sed -n "s/^$1: //p" "$2"; }

# Compiles the mutated source and links a plugin with it.
make_plugin() {
  local commands compile link
  commands=$(ninja -C "$build" -t commands gradprobe_plugin | grep -v '^ninja: ')
  compile=$(grep -- ' -c .*/plugin/communicator_launches\.cpp$' <<<"$commands")
  link=$(grep -- ' -o lib/libnccl-profiler-gradprobe\.so ' <<<"$commands")
  compile=$(sed -E "s# -MD -MT [^ ]+ -MF [^ ]+ -o [^ ]+ -c [^ ]+# -o $work/mutant.o -c $work/communicator_launches.cpp#" <<<"$compile")
  link=$(sed -E "s# -o lib/libnccl-profiler-gradprobe\.so # -o $work/libnccl-profiler-mutant.so $work/mutant.o #" <<<"$link")
  (cd "$build" && eval "$compile" && eval "$link")
}

# run PLUGIN MODE...
run() {
  "$root/tests/real_nccl/run_case.py" --build "$build" --wheel "$wheel" --bundle direct_shm --modes "${@:2}" \
    --plugin "$1" --set GRADPROBE_GATE_TIMEOUT=100 --discard >"$work/log" 2>&1
}

mapfile -t all_modes < <(for patch in "$@"; do line modes "$patch"; done | tr ' ' '\n' | sort -u)
if ! run "$build/lib/libnccl-profiler-gradprobe.so" "${all_modes[@]}"; then
  echo "the plugin as it is fails, so the mutants would show nothing:"
  tail -40 "$work/log"
  exit 1
fi

failed=0
for patch in "$@"; do
  name=$(basename "$patch" .patch)
  cp "$root/plugin/communicator_launches.cpp" "$work/"
  if ! patch -s -p1 -d "$work" <"$patch" >"$work/patch.log"; then
    echo "$name: its patch no longer applies: rewrite it for plugin/communicator_launches.cpp"
    failed=1
    continue
  fi
  make_plugin
  read -ra modes <<<"$(line modes "$patch")"
  if run "$work/libnccl-profiler-mutant.so" "${modes[@]}"; then
    echo "$name: NOT FOUND: $(head -1 "$patch")"
    failed=1
  elif ! grep -m 3 -F "$(line 'fails with' "$patch")" "$work/log" >"$work/found"; then
    echo "$name: failed, but not with the expected complaint:"
    tail -40 "$work/log"
    failed=1
  else
    echo "$name: found. $(head -1 "$patch")"
    cat "$work/found"
  fi
done
exit $failed
