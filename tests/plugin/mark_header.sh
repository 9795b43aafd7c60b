#!/usr/bin/env bash
# gradprobe.h in C and C++ of any age, without warnings and with nothing to link; and Python's two lines.
#   mark_header.sh COMPILER INCLUDE PLUGIN PRELOAD TOOL STANDIN WORK
set -euo pipefail
compiler=$1 include=$2 plugin=$3 preload=$4 tool=$5 standin=$6 work=$7
rm -rf "$work"
mkdir -p "$work/rings"
cat >"$work/marks.c" <<'PROGRAM'
#include <gradprobe/gradprobe.h>
#include <stdio.h>
int main(int argc, char** argv) {
  void* plugin;
  gradprobe_step(1);
  gradprobe_scalar("loss", 0.5);
  gradprobe_phase("train");
  if (gradprobe_version() != 0 || argc != 2) return 1;
  plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (plugin == 0) return 2;
  if (gradprobe_version() == 0) return 3;
  gradprobe_step(2);
  puts(gradprobe_version());
  return 0;
}
PROGRAM
for language in "c -std=c99" "c -std=c11" "c -std=gnu17" "c++ -std=c++11" "c++ -std=c++20"; do
  # shellcheck disable=SC2086
  "$compiler" -x $language -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I"$include" "$work/marks.c" \
    -o "$work/marks" -ldl
  "$work/marks" "$plugin" >/dev/null || { echo "$language: exit code $?"; exit 1; }
done
# The preload library has the functions, too.
printf '%s\n' '#include <gradprobe/gradprobe.h>' 'int main(void) { return gradprobe_version() == 0; }' >"$work/preloaded.c"
"$compiler" -x c -I"$include" "$work/preloaded.c" -o "$work/preloaded" -ldl
if "$work/preloaded"; then echo "gradprobe_version() without a library"; exit 1; fi
LD_PRELOAD=$preload "$work/preloaded" || { echo "not found in $preload"; exit 1; }
command -v python3 >/dev/null || { echo "python3 is missing: its lines are not tested"; exit 0; }
lines=('import contextlib, ctypes, os'
  'with contextlib.suppress(OSError): ctypes.CDLL("libnccl-profiler-gradprobe.so", os.RTLD_NOLOAD).gradprobe_step(n)')
for line in "${lines[@]}"; do
  grep -qxF "$line" "$include/../README.md" || { echo "README.md has another line than: $line"; exit 1; }
  grep -qF "$line" "$(dirname "$0")/marks_python.py" ||
    { echo "marks_python.py has another line than: $line"; exit 1; }
done
# Not loaded: nothing happens, whether it could be or not.
python3 -c "n = 3
${lines[0]}
${lines[1]}"
LD_LIBRARY_PATH=$(dirname "$plugin") python3 -c "n = 3
${lines[0]}
${lines[1]}"
LD_LIBRARY_PATH=$standin GRADPROBE_LOG=off python3 -B "$(dirname "$0")/marks_python.py" "$plugin" "$tool" "$work/rings"
