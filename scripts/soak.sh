#!/usr/bin/env bash
# Holds many command streams open for minutes and compares every byte: soak.sh [ARGUMENTS of hutch-soak]
# Sets up what is missing, starts a server on a data directory of its own, and takes everything away again.
set -euo pipefail
export HUTCH_STEP=soak
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"
# shellcheck source=lib/server.sh
. "$(dirname "$0")/lib/server.sh"

need_root "testing sandboxes"
cd "$repo"
scripts/setup-host.sh
scripts/build.sh all
scripts/build.sh bench

trap stop_server EXIT
start_server || exit 1
target/release/hutch-soak --url "$server_url" --api-key "$server_key" --pid "$server_pid" "$@"
