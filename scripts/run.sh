#!/usr/bin/env bash
# From a fresh clone to a running server: sets the machine up, compiles, builds the base template, serves.
# Everything is done once; the next start goes straight to the server. Arguments go to `hutch serve`.
#   HUTCH_DATA_DIR  where sandboxes, templates and the database live (default ./.hutch)
#   HUTCH_LISTEN    address of the one listener (default 127.0.0.1:3000)
set -euo pipefail
export HUTCH_STEP=run
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"
# shellcheck source=lib/jobs.sh
. "$(dirname "$0")/lib/jobs.sh"

[ "$(id -u)" -eq 0 ] || die "sandboxes need root: run it as root, for example: sudo -E env \"PATH=\$PATH\" make run"
command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup (rust-toolchain.toml names the version)"
cd "$repo"
mkdir -p "$data_dir" "$tools_dir"
trap stop_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

scripts/setup-host.sh
# A host without CRIU still runs sandboxes; what it cannot do is said here and by `hutch doctor`.
criu_or_without() {
  scripts/setup-criu.sh "$tools_dir/criu" || say "going on without CRIU: no pause with memory on this machine"
}
start_job criu criu_or_without
start_job base scripts/base-template.sh tar >/dev/null
start_job build scripts/build.sh all
wait_jobs
trap - EXIT INT TERM

scripts/base-template.sh import
exec "$hutch" serve --welcome --listen "$listen" --data-dir "$data_dir" "$@"
