# The cache of device code: build trees share an entry, and a changed input, flag or compiler is never served from it.
source "$(dirname "$0")/common.sh"

work=$scratch/work
mkdir -p "$work/a" "$work/b" "$bin"
# Compiles by copying: the output is the sources' text, behind the arguments that choose code.
fake nvcc <<'END'
echo nvcc >>"$calls"
while (($# > 0)); do
  case $1 in
    -MF) depfile=$2; shift ;;
    -MT) target=$2; shift ;;
    -o) out=$2; shift ;;
    -gencode) codes+=" $2"; shift ;;
    *.cu) source=$1 ;;
  esac
  shift
done
grep -q broken "$source" && exit 1
header=$(dirname "$source")/with\ space.h
printf '%s : %s \\\n  %s\n' "$target" "$source" "${header// /\\ }" >"$depfile"
{ echo "$codes"; cat "$source" "$header"; } >"$out"
END
touch "$calls"
compile() { # tree [code] [release]
  rc=0
  PATH=$bin:$PATH "$CMAKE" "-DOUT=$work/$1/k.fatbin" "-DCACHE=$work/cache" "-DVERSION=${3:-13.0}" \
    -P "$SOURCE_DIR/cmake/CompileFatbin.cmake" -- "$bin/nvcc" -fatbin -gencode "${2:-sm_90}" "$work/k.cu" \
    >"$scratch/out" 2>"$scratch/err" || rc=$?
}
expect_fresh() { # tree what
  [[ $rc == 0 && $(cat "$work/$1/k.fatbin") == *"$(cat "$work/k.cu" "$work/with space.h")" ]] || fail "$2: stale or none"
  grep -q "^$work/$1/k.fatbin : $work/k.cu" "$work/$1/k.fatbin.d" || fail "$2: the dependencies name another target"
}

echo kernel >"$work/k.cu"
echo header >"$work/with space.h"
compile a
expect_fresh a "first"
compile b
expect_fresh b "second tree"
expect_lines calls 1
echo "header, changed" >"$work/with space.h"
compile b
expect_fresh b "changed header"
expect_lines calls 2
compile a
expect_fresh a "other tree after the change"
expect_lines calls 2
compile a sm_120
expect_fresh a "other code"
expect_lines calls 3
compile a sm_90 13.1
expect_lines calls 4
echo broken >"$work/k.cu"
compile a
[[ $rc != 0 && ! -e $work/a/k.fatbin ]] || fail "a failed compilation left an output"
echo mended >"$work/k.cu"
compile a
expect_fresh a "after a failure"
expect_lines calls 6
rm "$work/with space.h"
compile b
[[ $rc != 0 ]] || fail "a vanished header was served from the cache"
finish
