#!/usr/bin/env bash
# Builds the base template once, and imports it into the data directory once:
#   base-template.sh tar      builds the tar file unless there is one from the same inputs; prints its path
#   base-template.sh import   imports that tar file unless this data directory has it
set -euo pipefail
export HUTCH_STEP=base
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"

cd "$repo"
inputs=$(content_hash templates/base scripts/lib/apt.sh)
tar=$tools_dir/base-$inputs.tar
stamp=$data_dir/base-template.imported

case ${1:-} in
  tar)
    if [ ! -f "$tar" ]; then
      rm -f "$tools_dir"/base-*.tar
      templates/base/build.sh "$tar"
    fi
    printf '%s\n' "$tar"
    ;;
  import)
    if [ -f "$stamp" ] && [ "$(<"$stamp")" = "$inputs" ]; then exit 0; fi
    [ -f "$tar" ] || die "$tar is missing: run scripts/base-template.sh tar first"
    say "importing the base template into $data_dir"
    "$hutch" template import --data-dir "$data_dir" --name base --rootfs "$tar" \
      --cpu 2 --memory-mib 512 --disk-mib 10240 2>&1 | prefix_lines base
    printf '%s\n' "$inputs" >"$stamp"
    ;;
  *) die "usage: scripts/base-template.sh tar|import" ;;
esac
