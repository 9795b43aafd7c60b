#!/usr/bin/env bash
# A function that the stand-in lacks is named once, however often it is called.
#   missing_test.sh WITH_STANDINS BUILD TEST_PROGRAM
set -euo pipefail
said=$("$1" "$2" - "$3" --gtest_filter='Missing.*' --gtest_repeat=3 2>&1 | grep -c 'cudaCreateTextureObject is not in the stand-in runtime' || true)
[[ $said == 1 ]] || {
  echo "expected one line that names cudaCreateTextureObject, got $said"
  exit 1
}
