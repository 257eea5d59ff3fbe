#!/usr/bin/env bash
# Runs every test: installs what is missing, builds all of it, runs ctest, whose summary comes last.
#   scripts/test.sh [CTEST ARGUMENTS]        e.g. scripts/test.sh -R golden
# XJIT_JOBS: parallel compilations and tests (default: the processors there are).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  -h|--help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

install_packages "${build_packages[@]}" "${test_packages[@]}"
need_rust
check_compiler
configure -DXJIT_BUILD_TESTS=ON
compile
# The tests of the real model are skipped, visibly, where it can't be had.
"$root/scripts/fetch_model.sh" >/dev/null || say "warning: the tests that need the real model will be skipped"
say "testing"
XJIT_MODELS=$models ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" "$@" </dev/null
