#!/usr/bin/env bash
# Provides a CRIU that can checkpoint containers on current kernels: setup-criu.sh DEST
# Afterwards DEST/criu is a program that works and passed its self-test on this kernel.
#
# The host's own CRIU is used when it is new enough. Otherwise the one of a later Debian release is unpacked with
# all its libraries into DEST/root, through a separate apt root: nothing on the host is installed or changed.
set -euo pipefail
export LC_ALL=C.UTF-8 HUTCH_STEP=criu
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/apt.sh
. "$(dirname "$0")/lib/apt.sh"

# Older releases fail on kernels from 6.16 or so: on the vDSO's layout, or on TCP sockets.
MINIMUM=4.2
SUITES=(forky sid)

[ $# -eq 1 ] || die "usage: scripts/setup-criu.sh DEST"
mkdir -p "$1"
dest=$(cd "$1" && pwd)

# Prints the version of a CRIU program, or nothing.
version_of() { "$1" --version 2>/dev/null | sed -n 's/^Version: *//p' | head -1; }
new_enough() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$MINIMUM"; }
stamp() { printf '%s %s\n' "$1" "$(uname -r)"; }

# Runs CRIU's own check of what the kernel offers and remembers the result for this kernel.
self_test() {
  local version log
  version=$(version_of "$dest/criu")
  new_enough "$version" || die "$dest/criu reports version '${version:-none}', at least $MINIMUM is needed"
  log=$("$dest/criu" check 2>&1) || {
    prefix_lines criu <<<"$log"
    die "CRIU $version does not work on kernel $(uname -r): sandboxes run, but cannot be paused with their memory"
  }
  stamp "$version" >"$dest/tested"
  say "CRIU $version works on kernel $(uname -r)"
}

if [ -x "$dest/criu" ] && [ -f "$dest/tested" ]; then
  tested=$(<"$dest/tested")
  [ "$tested" != "$(stamp "${tested%% *}")" ] || exit 0
fi
need_root "setting up CRIU"
if [ -x "$dest/criu" ] && new_enough "$(version_of "$dest/criu")"; then
  self_test
  exit 0
fi
if own=$(command -v criu) && new_enough "$(version_of "$own")"; then
  say "using this machine's own $own"
  ln -sfn "$own" "$dest/criu"
  self_test
  exit 0
fi

[ "$(uname -m)" = x86_64 ] || die "no CRIU $MINIMUM for $(uname -m) here: install one and run this again"
need_commands apt-get dpkg-deb awk
work=$dest/work
rm -rf --one-file-system "$work" "$dest/root" "$dest/tested"
mkdir -p "$work"/{lists/partial,archives/partial}
trap 'rm -rf --one-file-system "$work"' EXIT

codename=$(debian_codename)
need_debian_indexes "$codename"
mirror=$(debian_entries "$codename" | head -1 | cut -d' ' -f1)
: >"$work/status" # an empty machine: apt resolves the whole closure, down to libc
{
  apt_fetch_settings
  cat <<CONF
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$work";
Dir::State::status "$work/status";
Dir::Cache "$work";
APT::Sandbox::User "root";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "3";
CONF
} >"$work/apt.conf"
export APT_CONFIG=$work/apt.conf

found=
for suite in "${SUITES[@]}"; do
  say "fetching CRIU from Debian $suite"
  printf 'deb [signed-by=%s] %s %s main\n' "$DEBIAN_KEYRING" "$mirror" "$suite" >"$work/sources.list"
  if apt-get -q update 2>&1 | prefix_lines criu &&
    new_enough "$(apt-cache show criu 2>/dev/null | sed -n 's/^Version: *//p' | sort -rV | head -1)"; then
    found=$suite
    break
  fi
done
[ -n "$found" ] || die "the mirror $mirror has no CRIU >= $MINIMUM in ${SUITES[*]}: install one and run this again"
apt-get -q -y --download-only --no-install-recommends install criu 2>&1 | prefix_lines criu
for package in "$work"/archives/*.deb; do dpkg-deb --extract "$package" "$work/root"; done

lib=usr/lib/x86_64-linux-gnu
[ -x "$work/root/$lib/ld-linux-x86-64.so.2" ] || die "the packages of $found hold no dynamic linker at $lib"
rm -rf "$work"/root/usr/share "$work"/root/var
cat >"$work/criu" <<WRAPPER
#!/bin/sh
root=\${0%/*}/root
exec "\$root/$lib/ld-linux-x86-64.so.2" --library-path "\$root/$lib" "\$root/usr/sbin/criu" "\$@"
WRAPPER
chmod 0755 "$work/criu"
mv "$work/root" "$dest/root"
mv "$work/criu" "$dest/criu"
self_test
