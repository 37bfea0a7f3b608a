#!/usr/bin/env bash
# Builds the root file system of the base template: build.sh OUT_TAR
# Everything is fetched through this machine's own apt, pip and npm configuration; see README.md.
set -euo pipefail
export LC_ALL=C.UTF-8 HUTCH_STEP=base

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../../scripts/lib/common.sh
. "$here/../../scripts/lib/common.sh"
# shellcheck source=../../scripts/lib/apt.sh
. "$here/../../scripts/lib/apt.sh"
# shellcheck source=versions.sh
. "$here/versions.sh"

[ $# -eq 1 ] || die "usage: templates/base/build.sh OUT_TAR"
need_root "building the base template"
need_commands mmdebstrap python3 tar
[ "$(uname -m)" = x86_64 ] || die "the base template is built on x86_64 only, this is $(uname -m)"
mkdir -p "$(dirname "$1")"
out=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$(mktemp -d "$out.work.XXXXXX")
chmod 0755 "$work" # apt downloads as a user of its own
trap 'rm -rf --one-file-system "$work"' EXIT

codename=$(debian_codename)
need_debian_indexes "$codename"
debian_entries "$codename" >"$work/entries"
apt_fetch_settings >"$work/apt.conf"
# The newest release date that apt knows: builds from the same archive state get the same file times.
: "${SOURCE_DATE_EPOCH:=$(cat /var/lib/apt/lists/*_dists_"$codename"*_InRelease 2>/dev/null |
  sed -n 's/^Date: //p' | while IFS= read -r day; do date -d "$day" +%s; done | sort -n | tail -1)}"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

while read -r uri release components; do
  printf 'deb [signed-by=%s] %s %s %s\n' "$DEBIAN_KEYRING" "$uri" "$release" "$components"
done <"$work/entries" >"$work/sources.list"
# The same entries for the image, without any password of this machine's mirror.
while read -r uri release components; do
  uri=$(printf '%s' "$uri" | sed -E 's#^([a-z+]+://)[^/@]*@#\1#')
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n\n' \
    "$uri" "$release" "$components" "$DEBIAN_KEYRING"
done <"$work/entries" >"$work/debian.sources"

# Prints the packages to install, optional ones only where Debian's archive has them.
packages() {
  local name
  while read -r name; do
    case $name in
      '' | '#'*) ;;
      '?'*) ! apt-cache -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Cache="$work" show "${name#\?}" >/dev/null 2>&1 || printf '%s\n' "${name#\?}" ;;
      *) printf '%s\n' "$name" ;;
    esac
  done <"$here/packages.txt"
}

# Fetches node.whl and yarn.tgz into $work/parts.
fetch_parts() {
  mkdir -p "$work/parts"
  local pip=(python3 -m pip)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then
    python3 -m venv "$work/venv"
    pip=("$work/venv/bin/python" -m pip)
  fi
  say "fetching node $NODE_VERSION and yarn $YARN_VERSION"
  printf '%s==%s --hash=sha256:%s\n' "$NODE_WHEEL" "$NODE_VERSION" "$NODE_SHA256_x86_64" >"$work/parts/node.txt"
  "${pip[@]}" download --quiet --no-deps --only-binary=:all: --require-hashes --dest "$work/parts" \
    --requirement "$work/parts/node.txt" || die "pip could not fetch $NODE_WHEEL $NODE_VERSION"
  mv "$work"/parts/*.whl "$work/parts/node.whl"
  if command -v npm >/dev/null; then
    (cd "$work/parts" && npm pack --silent "yarn@$YARN_VERSION" >/dev/null) || die "npm could not fetch yarn"
    mv "$work/parts/yarn-$YARN_VERSION.tgz" "$work/parts/yarn.tgz"
  else
    die "npm is missing on this machine: install node 20 or newer, it fetches yarn for the image"
  fi
  printf '%s  %s\n' "$YARN_SHA256" "$work/parts/yarn.tgz" | sha256sum --check --quiet >&2 ||
    die "yarn $YARN_VERSION has another checksum than expected"
}

say "building Debian $codename; this takes a few minutes"
started=$SECONDS
fetch_parts
mmdebstrap --mode=root --variant=apt --format=directory --architectures=amd64 \
  --include="$(packages | paste -sd,)" \
  --aptopt="$work/apt.conf" \
  --dpkgopt='force-unsafe-io' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/lintian/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-include=/usr/share/locale/locale.alias' \
  --dpkgopt='path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED' \
  --customize-hook="'$here/customize.sh' \"\$1\" '$work/debian.sources' '$work/parts'" \
  "$codename" "$work/root" "$work/sources.list" 2>&1 | prefix_lines base
# What the tree holds of devices and mount points is set up per sandbox.
find "$work/root"/{dev,proc,sys,run,tmp} -mindepth 1 -delete
rm -f "$work"/root/etc/{hostname,resolv.conf} && install -m 0644 /dev/null "$work/root/etc/hostname"
install -m 0644 /dev/null "$work/root/etc/resolv.conf"

say "packing"
tar --create --file "$work/out.tar" --directory "$work/root" --sort=name --numeric-owner --xattrs \
  --format=pax --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
  --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime .
mv "$work/out.tar" "$out"
say "done: $(du -h "$out" | cut -f1) in $((SECONDS - started)) s"
