#!/usr/bin/env bash
# From a fresh clone to an answer: installs what is missing, builds xjit, fetches a small model and asks it something.
#   scripts/start.sh [PROMPT]
# Run again, it does only what is left to do. XJIT_MODELS names another model folder, XJIT_JOBS the parallel compilations.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  -h|--help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) printf 'xjit: error: start.sh: unknown flag %s (start.sh [PROMPT])\n' "$1" >&2; exit 2 ;;
esac
prompt=${1:-Why is the sky blue?}

install_packages "${build_packages[@]}"
need_rust
check_compiler
configure
compile xjit xjit-opt
model=$("$root/scripts/fetch_model.sh")
say "asking $(basename "$model"): $prompt"
"$build/tools/xjit" run "$model" --chat --prompt "$prompt" --temperature 0 --max-tokens 200
say "the same by hand: build/tools/xjit run $model --chat --prompt \"...\""
