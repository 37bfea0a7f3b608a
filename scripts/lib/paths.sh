# Where the scripts keep things. Source it after common.sh; every variable can be set by the caller.
# shellcheck shell=bash
# shellcheck disable=SC2034

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# State of the server, and what was fetched or built for it.
data_dir=${HUTCH_DATA_DIR:-$repo/.hutch}
listen=${HUTCH_LISTEN:-127.0.0.1:3000}
case $data_dir in /*) ;; *) data_dir=$PWD/$data_dir ;; esac
tools_dir=${HUTCH_TOOLS_DIR:-$data_dir/tools}
hutch=$repo/target/release/hutch
guest_dir=$repo/target/release/guest
