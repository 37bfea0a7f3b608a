#!/usr/bin/env bash
# Measures a running server next to the raw primitives on the same root: bench.sh [ARGUMENTS of hutch-bench]
# Sets up what is missing, starts a server on a data directory of its own, and takes everything away again.
set -euo pipefail
export HUTCH_STEP=bench
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"
# shellcheck source=lib/server.sh
. "$(dirname "$0")/lib/server.sh"

need_root "measuring sandboxes"
cd "$repo"
scripts/setup-host.sh
scripts/build.sh all
scripts/build.sh bench

trap stop_server EXIT
# No pool holds instances of the other templates: creates of the second are cold, sandboxes of the third have room for a file
# of 1 GiB in memory.
start_server bench-cold bench-large:4096 || exit 1
target/release/hutch-bench --url "$server_url" --api-key "$server_key" --pid "$server_pid" \
  --data-dir "$server_data" "$@"
