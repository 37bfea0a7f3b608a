#!/usr/bin/env bash
# Compiles Hutch: the static programs that run inside sandboxes, and the server. build.sh [guest|server|bench|all]
# Results: target/release/hutch and target/release/guest/{envd,init}, which the server finds next to itself.
set -euo pipefail
export HUTCH_STEP=build
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"

target=x86_64-unknown-linux-gnu
command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup (rust-toolchain.toml names the version)"
cd "$repo"

build_guest() {
  # Static, because they run in images of any distribution; a target folder of its own, because the flags differ.
  RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=target/guest \
    cargo build --locked --profile guest --target "$target" -p hutch-envd -p hutch-init 2>&1 | prefix_lines build
  mkdir -p "$guest_dir"
  install_guest envd
  install_guest init
}

# Puts a fresh file in place of the old one: running sandboxes may still have the old one open.
install_guest() {
  local built=target/guest/$target/guest/$1 place=$guest_dir/$1
  [ -x "$built" ] || die "cargo built no $built"
  cmp -s "$built" "$place" && return
  readelf -l "$built" 2>/dev/null | grep -q INTERP && die "$built is not a static program"
  install -m 0755 "$built" "$place.new"
  mv -f "$place.new" "$place"
}

build_server() {
  CARGO_TARGET_DIR=target cargo build --locked --release -p hutch 2>&1 | prefix_lines build
}

# hutch-bench and hutch-soak.
build_bench() {
  CARGO_TARGET_DIR=target cargo build --locked --release -p hutch-bench 2>&1 | prefix_lines build
}

case ${1:-all} in
  guest) build_guest ;;
  server) build_server ;;
  bench) build_bench ;;
  all) build_guest && build_server ;;
  *) die "usage: scripts/build.sh [guest|server|bench|all]" ;;
esac
