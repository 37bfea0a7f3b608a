#!/usr/bin/env bash
# Runs the end-to-end and security tests against a running server, with the published SDKs of two generations.
# The last line is "N passed, N failed, N skipped"; each skipped test is told as "SKIP: name: reason".
#   HUTCH_BIN, HUTCH_URL, HUTCH_API_KEY, HUTCH_DATA_DIR, HUTCH_PID   the running server
#   HUTCH_TEST_BASE_TAR   the base template's root file system, for servers that the tests start themselves
#   HUTCH_TEST_SOAK       the program hutch-soak; without it its test is skipped
#   HUTCH_E2E_CYCLES      creates and kills of the leak test (default 300)
# Arguments choose among the suites: run.sh [new] [old] [js] [security] [own]
# SDKs are installed once per version into .work, through the machine's own pip and npm.
set -uo pipefail
export HUTCH_STEP=e2e
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../scripts/lib/common.sh
. "$here/../../scripts/lib/common.sh"
# shellcheck source=../../scripts/lib/paths.sh
. "$here/../../scripts/lib/paths.sh"

: "${HUTCH_BIN:?}" "${HUTCH_URL:?}" "${HUTCH_API_KEY:?}" "${HUTCH_DATA_DIR:?}" "${HUTCH_PID:?}"
need_root "testing sandboxes"
need_commands python3 node npm ip nft losetup setpriv

# The older generation, which creates and connects by other routes than the newest one.
OLD_PYTHON=2.45.1
OLD_JAVASCRIPT=2.45.0
COMMAND_LINE=2.19.0
# Test runners, beside the SDK.
RUNNERS=("pytest>=8,<10" "pytest-xdist>=3,<4" "pytest-timeout>=2,<3")

cd "$here/.." || exit 1
work=$here/.work
logs=$work/logs
suites=" ${*:-new old js security own} "
mkdir -p "$work" "$repo/.hutch/scratch"
rm -rf "$logs"
mkdir "$logs"
wants() { case $suites in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# A newest version that cannot be asked for is the newest that is here already: newest_or_here VERSION PREFIX
newest_or_here() {
  if [ -n "$1" ]; then printf '%s\n' "$1"; else
    find "$work" -maxdepth 1 -name "$2-*" -printf '%f\n' | sed "s/^$2-//" | sort -V | tail -1
  fi
}

newest_python() {
  [ -x "$work/pip/bin/pip" ] || python3 -m venv "$work/pip" || return 1
  newest_or_here "$("$work/pip/bin/pip" index versions e2b 2>/dev/null | sed -nE '1s/^e2b \((.+)\)$/\1/p')" python
}

newest_javascript() { newest_or_here "$(npm view e2b version 2>/dev/null)" javascript; }

# Makes a virtual environment with an SDK: install_python VERSION
install_python() {
  local dir=$work/python-$1
  [ ! -e "$dir/.complete" ] || return 0
  say "installing the Python SDK $1"
  rm -rf "$dir"
  python3 -m venv "$dir" && "$dir/bin/pip" install --quiet "e2b==$1" "${RUNNERS[@]}" && touch "$dir/.complete"
}

# install_javascript VERSION
install_javascript() {
  local dir=$work/javascript-$1
  [ ! -e "$dir/.complete" ] || return 0
  say "installing the JavaScript SDK $1"
  rm -rf "$dir"
  mkdir -p "$dir" && npm install --silent --no-save --prefix "$dir" "e2b@$1" && touch "$dir/.complete"
}

install_command_line() {
  local dir=$work/cli-$COMMAND_LINE
  [ ! -e "$dir/.complete" ] || return 0
  say "installing E2B's command line $COMMAND_LINE"
  rm -rf "$dir"
  mkdir -p "$dir" && npm install --silent --no-save --prefix "$dir" "@e2b/cli@$COMMAND_LINE" && touch "$dir/.complete"
}

# A data directory for servers that the tests start. Their sandboxes have a disk of 1 GiB.
prepare_own() {
  HUTCH_NODE_NETWORK_NUMBER=2 "$HUTCH_BIN" template import --data-dir "$own" --name base \
    --rootfs "${HUTCH_TEST_BASE_TAR:?}" --cpu 2 --memory-mib 512 --disk-mib 1024 >"$logs/import" 2>&1
}

# Runs pytest with the SDK of a version: run_pytest NAME VERSION ARGUMENTS...
run_pytest() {
  local name=$1 python=$work/python-$2/bin/python
  shift 2
  (
    PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 HUTCH_E2E_OWN_DATA=$own \
      HUTCH_E2E_CLI=$work/cli-$COMMAND_LINE/node_modules/.bin/e2b timeout --kill-after=10 900 \
      "$python" -m pytest -p support.fixtures -p no:cacheprovider -q --tb=short --timeout=240 --durations=8 \
        --rootdir=. --import-mode=importlib --junit-xml="$logs/$name.xml" "$@"
  ) >"$logs/$name.log" 2>&1
  finish "$name" $?
}

# Runs node's test runner: run_node NAME VERSION
run_node() {
  local name=$1
  (
    cd "$here/javascript" &&
      HUTCH_E2E_NODE_MODULES=$work/javascript-$2/node_modules timeout --kill-after=10 600 \
        node --test --test-reporter=spec --test-reporter-destination=stdout \
        --test-reporter=tap --test-reporter-destination="$logs/$name.tap" ./*.test.mjs
  ) >"$logs/$name.log" 2>&1
  finish "$name" $?
}

# Notes a suite's numbers and shows what is of interest of its output: finish NAME CODE
finish() {
  local ok=0 bad=0 skip=0
  if [ -s "$logs/$1.xml" ]; then
    read -r ok bad skip < <(python3 -c '
import sys, xml.etree.ElementTree as tree
count = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
for suite in tree.parse(sys.argv[1]).iter("testsuite"):
    for name in count: count[name] += int(suite.get(name, 0))
bad = count["failures"] + count["errors"]
print(max(count["tests"] - bad - count["skipped"], 0), bad, count["skipped"])' "$logs/$1.xml")
  elif [ -s "$logs/$1.tap" ]; then
    ok=$(sed -nE 's/^# pass ([0-9]+)$/\1/p' "$logs/$1.tap")
    bad=$(sed -nE 's/^# fail ([0-9]+)$/\1/p' "$logs/$1.tap")
    skip=$(sed -nE 's/^# skipped ([0-9]+)$/\1/p' "$logs/$1.tap")
    sed -nE 's/^ *ok [0-9]+ - (.*) # SKIP ?(.*)$/SKIP: \1: \2/p' "$logs/$1.tap"
  fi
  # It did not come to its tests, or it was killed.
  if [ "$2" -ne 0 ] && [ "${bad:-0}" -eq 0 ]; then bad=1; fi
  printf '%d %d %d\n' "${ok:-0}" "${bad:-0}" "${skip:-0}" >"$logs/$1.count"
  if [ "$bad" -gt 0 ]; then
    prefix_lines "$1" <"$logs/$1.log"
  else
    grep -hE '^SKIP: ' "$logs/$1.log"
  fi
  say "$1: ${ok:-0} passed, ${bad:-0} failed, ${skip:-0} skipped ($((SECONDS - begun)) s)"
}

own=$(mktemp -d "$repo/.hutch/scratch/own-XXXXXX")
clean() {
  local job
  for job in $(jobs -p); do kill "$job" 2>/dev/null; done
  wait
  # A server that a test started and that outlived it ends with its sandboxes.
  if [ -s "$own.pid" ]; then kill -KILL "$(<"$own.pid")" 2>/dev/null; fi
  if [ -d "$own/node" ]; then
    HUTCH_NODE_NETWORK_NUMBER=2 "$HUTCH_BIN" sandbox purge --data-dir "$own" >"$logs/purge" 2>&1 ||
      prefix_lines purge <"$logs/purge"
  fi
  rm -rf --one-file-system "$own" "$own.log" "$own.pid"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

begun=$SECONDS
python=$(newest_python) javascript=$(newest_javascript)
[ -n "$python" ] && [ -n "$javascript" ] || die "the newest versions of the SDKs are not known: do pip and npm work here?"
say "Python SDK $python and $OLD_PYTHON, JavaScript SDK $javascript and $OLD_JAVASCRIPT"
if wants own; then
  prepare_own &
  import=$!
fi
for version in "$python" "$OLD_PYTHON"; do install_python "$version" || die "pip could not install e2b $version"; done
for version in "$javascript" "$OLD_JAVASCRIPT"; do
  install_javascript "$version" || die "npm could not install e2b $version"
done

install_command_line || die "npm could not install E2B's command line $COMMAND_LINE"

# The suites of both languages run beside each other, each with two workers: most of their time they wait.
{
  if wants new; then run_pytest python "$python" -n 2 --dist loadscope e2e/python; fi
  if wants old; then run_pytest python-old "$OLD_PYTHON" -n 2 --dist loadscope e2e/python/test_sdk_*.py; fi
} &
python_suites=$!
{
  if wants js; then
    run_node javascript "$javascript"
    run_node javascript-old "$OLD_JAVASCRIPT"
  fi
} &
wait "$python_suites" $!

# These use up what the machine has, or count what is on it.
if wants security; then
  run_pytest security "$python" -n 3 --dist worksteal security --ignore=security/test_disk.py
fi
if wants own; then
  wait "$import" || {
    prefix_lines import <"$logs/import"
    say "error: the template could not be imported for servers of the tests"
  }
  run_pytest disk "$python" security/test_disk.py
  # Programs with each of the SDKs run against a server with TLS.
  export HUTCH_E2E_WORK=$work
  export HUTCH_E2E_SDKS="python-$python python-$OLD_PYTHON javascript-$javascript javascript-$OLD_JAVASCRIPT"
  run_pytest own "$python" e2e/own
fi

cat "$logs"/*.count | awk '{ ok += $1; bad += $2; skip += $3 }
  END { printf "%d passed, %d failed, %d skipped\n", ok, bad, skip; exit bad > 0 || ok == 0 }'
