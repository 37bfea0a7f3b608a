# Shared by the set-up scripts: messages, checks and stamps. Source it, do not run it.
# shellcheck shell=bash

# Prints one progress line, marked with the name of the script that speaks.
say() { printf '[%s] %s\n' "${HUTCH_STEP:-$(basename "$0" .sh)}" "$*" >&2; }

# Prints one line that says what is wrong and what to do, and ends the script.
die() {
  printf '[%s] error: %s\n' "${HUTCH_STEP:-$(basename "$0" .sh)}" "$*" >&2
  exit 1
}

# Ends the script unless it runs as root.
need_root() {
  [ "$(id -u)" -eq 0 ] || die "$1 needs root: run it again with sudo (or as root)"
}

# Ends the script unless every named command exists.
need_commands() {
  local name
  for name in "$@"; do
    command -v "$name" >/dev/null || die "'$name' is missing: run scripts/setup-host.sh first"
  done
}

# Marks every line of standard input with a name and writes it to standard error.
prefix_lines() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do printf '[%s] %s\n' "$1" "$line" >&2; done
}

# Prints one hash over the contents and names of the given files and folders, texts for people left out.
content_hash() {
  find "$@" -type f ! -name '*.md' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-20
}
