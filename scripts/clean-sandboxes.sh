#!/usr/bin/env bash
# Ends every sandbox of a stopped server and removes what it holds on this machine. The database and the templates stay:
# the next `hutch serve` reports the sandboxes as killed.
#   HUTCH_DATA_DIR             whose sandboxes (default ./.hutch)
#   HUTCH_NODE_NETWORK_NUMBER  that server's network number, where it is not the default
set -euo pipefail
export HUTCH_STEP=clean
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"

need_root "removing sandboxes"
[ -d "$data_dir/node" ] || exit 0
[ -x "$hutch" ] || die "$hutch is missing: run 'make build' first"
exec "$hutch" sandbox purge --data-dir "$data_dir"
