# Names of tests say what they test: no parameter is printed as bytes, as an address or behind "GetParam()".
set -euo pipefail
: "${BUILD_DIR:?}"
# ctest itself has written down all names before the first test starts.
names=$(find "$BUILD_DIR" -name '*_tests.cmake' -exec sed -n 's/^add_test(\(.*\) .*--gtest_filter=.*/\1/p' {} +)
(($(wc -l <<<"$names") > 100)) || {
  echo "FAILED: the names of the tests were not found in $BUILD_DIR"
  exit 1
}
if grep -E -- '-byte object|GetParam\(\)|0x[0-9a-f]{6,}' <<<"$names"; then
  echo "FAILED: these names say little: give the suite a name generator, its gtest_discover_tests() NO_PRETTY_VALUES"
  exit 1
fi
