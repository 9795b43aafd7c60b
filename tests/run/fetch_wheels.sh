# fetch_wheels.py with an imitated pip: what lands in the folder, what is said and returned when something is wrong, and
# that interrupted runs and two at once leave nothing half made.
source "$(dirname "$0")/common.sh"

hash=$(printf 'a%.0s' {1..64})

# Two wheels; pip takes $state/pip-sleep seconds, and $state/pip says what it does: bring (default), cut, hash, nothing.
fresh_list() {
  rm -rf "$repo" "$state" "$scratch/pip" "$calls"
  mkdir -p "$repo/tests/real_nccl" "$state" "$scratch/pip/pip"
  cp "$SOURCE_DIR/tests/real_nccl/fetch_wheels.py" "$repo/tests/real_nccl"
  printf '# comment\n9.9.9 cu13 always %s\n9.8.0 cu12 preload %s\n' "$hash" "$hash" >"$repo/tests/real_nccl/wheels.txt"
  wheels=$repo/build/wheels
  touch "$calls" "$scratch/pip/pip/__init__.py"
  cat >"$scratch/pip/pip/__main__.py" <<END
import pathlib, re, sys, time, zipfile
state = pathlib.Path("$state")
into = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
wanted = pathlib.Path(sys.argv[sys.argv.index("-r") + 1]).read_text().strip()
with open("$calls", "a") as calls:
    calls.write(wanted + "\n")
def setting(name, default):
    return (state / name).read_text().strip() if (state / name).exists() else default
time.sleep(float(setting("pip-sleep", "0")))
does = setting("pip", "bring")
if does == "nothing":
    sys.exit("WARNING: Retrying\nERROR: No matching distribution found")
if does == "hash":
    sys.exit("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.")
with zipfile.ZipFile(into / "nccl.whl", "w") as wheel:
    wheel.writestr("nvidia/nccl/lib/libnccl.so.2", "library of " + wanted.split()[0])
    if does != "cut":
        wheel.writestr("nvidia/nccl/include/nccl.h", "header")
    wheel.writestr("something/else", "else")
END
}

fetch() {
  rc=0
  env -u GRADPROBE_CACHE PYTHONPATH="$scratch/pip" "${settings[@]}" python3 "$repo/tests/real_nccl/fetch_wheels.py" \
    "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || rc=$?
}

expect_wheel() { # folder requirement
  [[ $(cat "$1/libnccl.so.2") == "library of $2" ]] || fail "$1 holds no library of $2"
  [[ $(cat "$1/include/nccl.h") == header ]] || fail "$1 holds no header"
}

expect_only() { # what a listing of the wheels' folder must give
  [[ $(ls "$wheels" -A | grep -vFx .lock | tr '\n' ' ') == "$1" ]] || fail "$wheels holds $(ls -A "$wheels")"
}

fresh_list
fetch
expect_rc 0 "all"
expect_in calls "nvidia-nccl-cu13==9.9.9 --hash=sha256:$hash"
expect_wheel "$wheels/9.9.9-cu13" nvidia-nccl-cu13==9.9.9
expect_wheel "$wheels/9.8.0-cu12" nvidia-nccl-cu12==9.8.0
expect_only "9.8.0-cu12 9.9.9-cu13 "
expect_lines err 0
: >"$calls"
fetch
expect_rc 0 "all are there"
expect_lines calls 0
fetch --list
expect_in out "9.9.9-cu13 always there"

# Another hash in the list, and a folder from which something was removed.
sed -i '2s/a*$/'"${hash//a/b}/" "$repo/tests/real_nccl/wheels.txt"
rm "$wheels/9.8.0-cu12/include/nccl.h"
fetch --list
expect_count out missing 2
fetch
expect_rc 0 "again"
expect_lines calls 2
expect_wheel "$wheels/9.9.9-cu13" nvidia-nccl-cu13==9.9.9
expect_wheel "$wheels/9.8.0-cu12" nvidia-nccl-cu12==9.8.0
expect_only "9.8.0-cu12 9.9.9-cu13 "

fresh_list
settings=(GRADPROBE_CACHE="$scratch/cache")
fetch 9.9.9
settings=()
expect_rc 0 "one, into the cache"
expect_lines calls 1
expect_wheel "$scratch/cache/9.9.9-cu13" nvidia-nccl-cu13==9.9.9
[[ ! -e $wheels ]] || fail "the cache is set, and $wheels was made"

refused() { # exit code, what err says
  expect_rc "$1" "$2"
  expect_in err "$2"
  expect_lines err "$3"
}

fresh_list
fetch 1.0
refused 2 "fetch_wheels: 1.0: not among 9.9.9-cu13, 9.8.0-cu12" 1
echo "9.9.9 cu13 always short" >"$repo/tests/real_nccl/wheels.txt"
fetch
refused 2 "wheels.txt, line 1: must be VERSION cu12|cu13" 1

fresh_list
echo hash >"$state/pip"
fetch 9.9.9
refused 1 "NCCL 9.9.9-cu13: the wheel's SHA-256 isn't the one in wheels.txt: not used" 1
expect_only ""
echo cut >"$state/pip"
fetch 9.9.9
refused 1 "NCCL 9.9.9-cu13: nccl.whl isn't laid out as expected" 1
expect_only ""

# No network: two are tried.
echo nothing >"$state/pip"
printf '9.7.%d cu13 chosen '"$hash"'\n' 0 1 2 >>"$repo/tests/real_nccl/wheels.txt"
fetch
refused 3 "NCCL 9.9.9-cu13: pip couldn't download it (no network?): ERROR: No matching distribution found" 3
expect_in err "not tried after two failed downloads: 9.7.0-cu13 9.7.1-cu13 9.7.2-cu13"
expect_count calls "cu13==9.7" 0
expect_only ""

fresh_list
mkdir -p "$repo/build"
touch "$wheels"
fetch 9.9.9
refused 1 "NCCL 9.9.9-cu13: " 1

# Ended and killed while pip runs.
for signal in TERM KILL; do
  fresh_list
  echo 2 >"$state/pip-sleep"
  PYTHONPATH=$scratch/pip python3 "$repo/tests/real_nccl/fetch_wheels.py" 9.9.9 >/dev/null 2>&1 &
  until [[ -s $calls ]]; do sleep 0.05; done
  kill -$signal $!
  wait $! || true
  [[ ! -e $wheels/9.9.9-cu13 ]] || fail "$signal: half made"
  if [[ $signal == TERM ]]; then expect_only ""; fi
  echo 0 >"$state/pip-sleep"
  fetch 9.9.9
  expect_rc 0 "after $signal"
  expect_only "9.9.9-cu13 "
done

# Two at once: the second waits and finds everything there.
fresh_list
echo 0.5 >"$state/pip-sleep"
PYTHONPATH=$scratch/pip python3 "$repo/tests/real_nccl/fetch_wheels.py" >/dev/null 2>&1 &
fetch
expect_rc 0 "the one of two"
wait $! || fail "the other of two: exit code $?"
expect_lines calls 2
expect_only "9.8.0-cu12 9.9.9-cu13 "
expect_wheel "$wheels/9.9.9-cu13" nvidia-nccl-cu13==9.9.9
finish
