# Reads the machine's own apt configuration, so that what we download comes from the mirrors, through the
# proxies and with the keys that this machine already trusts. Source it after common.sh.
# shellcheck shell=bash

# shellcheck disable=SC2034
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Prints the code name of the host's Debian release, or ends the script on another distribution.
debian_codename() {
  local id codename
  id=$(. /etc/os-release && printf '%s' "${ID:-}")
  codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  [ "$id" = debian ] || die "this machine runs '${id:-an unknown system}': Debian 12 or newer is needed here"
  [ -n "$codename" ] || die "/etc/os-release names no VERSION_CODENAME: a Debian release (12 or newer) is needed"
  printf '%s\n' "$codename"
}

# Prints "URI RELEASE COMPONENT" for every package index of Debian's own archive that apt knows and whose
# signature it has verified. Third-party archives carry another Origin in their signed Release file.
debian_indexes() {
  # The names between the dollar signs are apt's, not the shell's.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(ORIGIN) $(TRUSTED) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' |
    awk '$1 == "Debian" && $2 == "yes" { print $3, $4, $5 }' | LC_ALL=C sort -u
}

# Makes sure that apt has fetched the indexes of Debian's own archive for the given code name.
need_debian_indexes() {
  if ! debian_indexes | awk -v r="$1" '$2 == r { found = 1 } END { exit !found }'; then
    say "fetching apt's package lists"
    apt-get -q update >&2 || die "apt-get update failed: check /etc/apt/sources.list*"
    debian_indexes | awk -v r="$1" '$2 == r { found = 1 } END { exit !found }' ||
      die "apt has no entry for Debian's '$1' in /etc/apt/sources.list*: add one"
  fi
}

# Prints "URI RELEASE COMPONENTS" for a release, its updates and its security updates, the release first.
# Backports and proposed updates are left out, so that an image is the same on every machine.
debian_entries() {
  debian_indexes | awk -v r="$1" '
    $2 != r && $2 != r "-updates" && $2 != r "-security" { next }
    { key = $1 " " $2; if (!(key in seen)) { seen[key] = 1; keys[++n] = key } parts[key] = parts[key] " " $3 }
    END { for (i = 1; i <= n; i++) print ((keys[i] ~ " " r "$") ? 0 : 1), keys[i] parts[keys[i]] }' |
    LC_ALL=C sort -s -k1,1n | cut -d' ' -f2-
}

# Prints the settings of this machine's apt that decide how files are fetched (proxies, CA files, client
# certificates, retries, date checks) in the form of an apt.conf file.
apt_fetch_settings() {
  apt-config dump |
    grep -E '^Acquire::((http|https|ftp|tor|Retries|ForceIPv|Check-|Proxy|AllowInsecure|AllowWeak)[^ ]*) ' |
    grep -v ' "";$' || true
  printf 'Acquire::Languages "none";\n'
  # Passwords for mirrors lie in files that apt looks for below its own root.
  [ ! -f /etc/apt/auth.conf ] || printf 'Dir::Etc::netrc "/etc/apt/auth.conf";\n'
  [ ! -d /etc/apt/auth.conf.d ] || printf 'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";\n'
}
