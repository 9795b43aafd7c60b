# package.sh BUILD WORK VERSION: installs BUILD below WORK, moves it (nothing may remember the prefix), and uses it.
set -euo pipefail
build=$1 work=$2 version=$3
rm -rf "$work"
mkdir -p "$work"
fail() {
  echo "FAILED: $*"
  exit 1
}

"$CMAKE" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"
prefix=$work/prefix

[[ -x $prefix/bin/gradprobe ]] || fail "no bin/gradprobe"
[[ $("$prefix/bin/gradprobe" --version) == *"$version"* ]] || fail "bin/gradprobe --version doesn't say $version"
[[ -n $(find "$prefix/lib" -name libnccl-profiler-gradprobe.so) ]] || fail "no lib/libnccl-profiler-gradprobe.so"
(cd "$work" && "$prefix/bin/gradprobe" run --quiet -- env) >"$work/run.log" 2>/dev/null || fail "gradprobe run env"
grep -qxE "NCCL_PROFILER_PLUGIN=.*/prefix/lib.*/libnccl-profiler-gradprobe.so" "$work/run.log" ||
  fail "gradprobe run doesn't find the installed plugin"
for header in "$(dirname "$0")"/../../include/gradprobe/*.h*; do
  cmp -s "$header" "$prefix/include/gradprobe/$(basename "$header")" || fail "not installed: $(basename "$header")"
done
if grep -rlF "$work/first" "$prefix/lib" --include '*.cmake'; then fail "these know the prefix"; fi

consume() { # wanted version, build folder
  "$CMAKE" -S "$(dirname "$0")/consumer" -B "$work/$2" -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" "-DWANTED=$1"
}
consume "${version%.*}" consumer
"$CMAKE" --build "$work/consumer"
"$work/consumer/consumer" "$work/made.ring"
[[ $("$prefix/bin/gradprobe" dump "$work/made.ring") == *AllReduce* ]] || fail "gradprobe dump doesn't show the record"
if consume 99.0 refused >"$work/refused.log" 2>&1; then fail "version 99.0 was found"; fi
grep -q gradprobe "$work/refused.log" || fail "version 99.0 was refused for another reason"
