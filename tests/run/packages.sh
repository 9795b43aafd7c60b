# Missing packages: installed as root or with a sudo that asks nothing, otherwise the exact line to type and exit 2.
source "$(dirname "$0")/common.sh"

# A fake apt-get, whose install makes tools and packages appear.
fake_apt() {
  fake apt-get <<'END'
echo "apt-get $* (${DEBIAN_FRONTEND:-})" >>"$calls"
if [[ $* == *" install "* ]]; then
  if [[ -e $state/apt-fails ]]; then echo "E: Unable to fetch some archives"; exit 100; fi
  for package in "$@"; do
    if grep -qFx "$package" "$state/missing" 2>/dev/null; then
      grep -vFx "$package" "$state/missing" >"$state/rest"
      mv "$state/rest" "$state/missing"
    fi
    case $package in
      cmake | g++) mv "$state/$package" "$bin/$package" ;;
      ninja-build) mv "$state/ninja" "$bin/ninja" ;;
    esac
  done
fi
END
}

user() { fake id <<<"echo $1"; }

bare_machine() { # without tools and with two libraries missing
  fresh_machine
  fake_apt
  mv "$bin/cmake" "$bin/ninja" "$bin/g++" "$state"
  printf '%s\n' libfmt-dev liblz4-dev >"$state/missing"
}

line="sudo apt-get update && sudo apt-get install -y --no-install-recommends \
cmake ninja-build g++ libfmt-dev liblz4-dev ccache valgrind python3-venv"

bare_machine
user 1000
run_it setup
expect_rc 2 "no root, no sudo"
expect_in err "$line"
expect_lines err 2
expect_lines calls 0

bare_machine
user 1000
fake sudo <<<'echo "sudo $*" >>"$calls"; exit 1'
run_it setup
expect_rc 2 "sudo that wants a password"
expect_in err "$line"
expect_not_in calls "apt-get"

bare_machine
user 1000
fake sudo <<'END'
[[ $1 == -n ]] || exit 1
echo "sudo $*" >>"$calls"
"${@:2}"
END
ln -s "$(type -P true)" "$bin/true"
run_it setup
expect_rc 0 "sudo without a password"
expect_in calls "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get"
expect_in out "CUDA Toolkit 13.0"

bare_machine
user 0
run_it setup
expect_rc 0 "root"
expect_lines calls 2
expect_count calls " update (noninteractive)" 1
expect_in calls "install -y --no-install-recommends cmake ninja-build g++ libfmt-dev liblz4-dev ccache valgrind python3-venv (noninteractive)"
expect_in out "installing cmake ninja-build g++ libfmt-dev liblz4-dev ccache valgrind python3-venv: done"

: >"$calls"
run_it setup
expect_rc 0 "nothing missing any more"
expect_lines calls 0

bare_machine
user 0
touch "$state/apt-fails"
run_it setup
expect_rc 2 "apt-get fails"
expect_in err "E: Unable to fetch some archives"
expect_in err "packages could not be installed: cmake"

bare_machine
rm "$bin/apt-get"
run_it setup
expect_rc 2 "no apt-get"
expect_lines err 1
expect_in err "missing: cmake ninja-build g++ libfmt-dev liblz4-dev"

for version in 3.24.9 3.9.0 2.8; do
  fresh_machine
  fake cmake <<<"echo cmake version $version"
  run_it setup
  expect_rc 2 "CMake $version"
  expect_lines err 1
  expect_in err "is CMake $version: 3.25 or newer is needed"
done
for version in 3.25.0 3.30.2 4.1.0; do
  fresh_machine
  fake cmake <<<"echo cmake version $version"
  run_it setup
  expect_rc 0 "CMake $version"
done
finish
