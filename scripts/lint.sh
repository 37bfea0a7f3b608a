#!/usr/bin/env bash
# Formatting, clippy with warnings as errors, and a syntax check of the scripts (shellcheck too, where installed).
set -euo pipefail
export HUTCH_STEP=lint
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"
cd "$repo"

mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
for script in "${scripts[@]}"; do bash -n "$script"; done
if command -v shellcheck >/dev/null; then shellcheck -x --source-path=SCRIPTDIR "${scripts[@]}"; fi
cargo fmt --all --check
cargo clippy --locked --workspace --all-targets -- -D warnings
say "clean"
