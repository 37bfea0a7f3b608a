#!/usr/bin/env bash
# Installs the Debian packages that building and running Hutch needs, and only those that are missing.
# Safe to run again: it does nothing, and quickly, when everything is there.
#   setup-host.sh [tests]   with what only tests need
set -euo pipefail
export HUTCH_STEP=host
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"

# What for: containers and their network; what they show in /proc; building the base template; sandbox disks; compiling;
# scripts.
packages=(
  runc nftables iproute2
  lxcfs
  mmdebstrap debian-archive-keyring
  e2fsprogs util-linux mount kmod
  gcc libc6-dev make pkg-config
  python3 python3-venv ca-certificates curl procps
)

# An ACME server, and a second opinion on certificates. Name servers are not among them: installing one starts it.
if [ "${1:-}" = tests ]; then packages+=(pebble openssl); fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  die "this machine has no apt: Debian 12 or newer is needed, with ${packages[*]}"
fi

missing=()
installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' 2>/dev/null)
for package in "${packages[@]}"; do
  # Names that another package provides (pkg-config by pkgconf) count when their command is there.
  grep -qx "installed $package" <<<"$installed" || [ -x "/usr/bin/$package" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

need_root "installing ${missing[*]}"
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
{
  apt-get -q -o DPkg::Lock::Timeout=300 update &&
    apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
} 2>&1 </dev/null | prefix_lines host || die "apt could not install ${missing[*]}: see the lines above"
