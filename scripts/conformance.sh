#!/usr/bin/env bash
# Runs the test suites of a checkout of the public SDK repository, unmodified, against a server of its own, and writes
# docs/compatibility.md and docs/compatibility.json. Fails when a test fails without a reason that is listed in
# tests/conformance/reasons.toml.
#   SDK            the checkout: its packages/python-sdk and packages/js-sdk are used
#   CI             a checkout of the code interpreter's repository (optional)
#   HUTCH_BIN      program of the server, with `guest` beside it (default: built here)
#   HUTCH_TEST_BASE_TAR  root file system of the base template (default: built here)
#   HUTCH_CONFORMANCE_WORKERS  tests that run at a time (default 3)
#   HUTCH_CONFORMANCE_ONLY     suites to run, separated by commas; the pages are then not written
# The server runs in a network and a mount namespace of its own, with TLS and DNS for E2B's own domain, and with a small
# internet for its sandboxes: see tests/conformance/lab.py. SDKs are installed through the machine's own pip and npm.
set -euo pipefail
export HUTCH_STEP=conformance
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"

checkout=${SDK:-} interpreter=${CI:-}
case $interpreter in
  # Continuous integration sets it to a word.
  '' | 1 | true) interpreter='' ;;
  *) [ -d "$interpreter/python/tests" ] || die "$interpreter has no python/tests: is it a checkout of the code interpreter's repository?" ;;
esac
[ -n "$checkout" ] || die "name a checkout of the SDK repository: make conformance SDK=path"
checkout=$(cd "$checkout" && pwd) || die "there is no folder $SDK"
for folder in python-sdk js-sdk; do
  [ -d "$checkout/packages/$folder/tests" ] || die "$checkout has no packages/$folder/tests: is it a checkout of the SDK repository?"
done
need_root "testing sandboxes"
need_commands python3 node npm ip nft losetup openssl unshare git
python3 -c 'import tomllib' 2>/dev/null || die "python3 is older than 3.11, which reading reasons.toml needs"

cd "$repo"
here=$repo/tests/conformance
work=$here/.work
results=$work/results
mkdir -p "$work" "$repo/.hutch/scratch"
rm -rf "$results"
mkdir "$results"

if [ -n "${HUTCH_BIN:-}" ]; then hutch=$HUTCH_BIN; else
  scripts/setup-host.sh
  scripts/build.sh all
fi
# Saving memory needs a CRIU that works here; without one the tests of it fail.
if [ -z "${HUTCH_NODE_CRIU:-}" ] && scripts/setup-criu.sh "$tools_dir/criu"; then
  export HUTCH_NODE_CRIU=$tools_dir/criu/criu
fi
base=${HUTCH_TEST_BASE_TAR:-}
[ -n "$base" ] || base=$(mkdir -p "$tools_dir" && scripts/base-template.sh tar)

# The newest version that the registries have.
pip_of() {
  [ -x "$work/pip/bin/pip" ] || python3 -m venv "$work/pip"
  "$work/pip/bin/pip" "$@"
}
version_in() { sed -nE "$1" "$2" | head -1; }
python_checkout=$(version_in 's/^version = "(.*)"$/\1/p' "$checkout/packages/python-sdk/pyproject.toml")
javascript_checkout=$(node -p 'require(process.argv[1]).version' "$checkout/packages/js-sdk/package.json")
python_newest=$(pip_of index versions e2b 2>/dev/null | sed -nE '1s/^e2b \((.+)\)$/\1/p')
javascript_newest=$(npm view e2b version 2>/dev/null)
[ -n "$python_newest" ] && [ -n "$javascript_newest" ] ||
  die "the newest versions of the SDKs are not known: do pip and npm work here?"
say "Python SDK $python_checkout and $python_newest, JavaScript SDK $javascript_checkout and $javascript_newest"

# Installs once per content of what is installed: stamped FOLDER STAMP COMMAND...
stamped() {
  local folder=$work/$1 stamp=$2
  shift 2
  if [ -e "$folder/.complete" ] && [ "$(<"$folder/.complete")" = "$stamp" ]; then return 0; fi
  say "installing $(basename "$folder")"
  rm -rf "$folder"
  mkdir -p "$folder"
  "$@" "$folder" >"$results/install.log" 2>&1 || {
    tail -n 20 "$results/install.log" | prefix_lines install
    die "$(basename "$folder") could not be installed"
  }
  printf '%s' "$stamp" >"$folder/.complete"
}

# The runners that the checkout's tests are written for, by their present versions.
runners=("pytest>=9,<10" "pytest-xdist>=3.3,<4" "pytest-timeout>=2.4,<3" "pytest-asyncio>=1.3,<2" "pytest-dotenv>=0.5.2,<0.6")

# Tests in a folder of their own, so that what they import is the package that is installed: python_suite SOURCE PACKAGE FOLDER
python_suite() {
  cp -r "$1/tests" "$1/pytest.ini" "$3/" &&
    python3 -m venv "$3/venv" &&
    "$3/venv/bin/pip" install --quiet "$2" "${runners[@]}" "${extra[@]}"
}

# javascript_suite FOLDER
javascript_suite() {
  mkdir "$1/sdk" &&
    cp -r "$checkout/packages/js-sdk/"{src,tests,package.json,tsconfig.json} "$1/sdk/" &&
    cp "$here/vitest.config.mjs" "$1/" &&
    python3 "$here/package.py" "$checkout/packages/js-sdk" "$javascript_newest" >"$1/package.json" &&
    npm install --silent --no-audit --no-fund --prefix "$1"
}

# interpreter_javascript FOLDER
interpreter_javascript() {
  cp -r "$interpreter/js/"{src,tests,tsconfig.json,vitest.config.mts} "$1/" &&
    python3 "$here/package.py" "$interpreter/js" "$javascript_newest" >"$1/package.json" &&
    npm install --silent --no-audit --no-fund --prefix "$1"
}

sources=$(content_hash "$checkout/packages/python-sdk/"{tests,e2b,pyproject.toml} "$checkout/packages/js-sdk/"{tests,src} "$here"/{package.py,vitest.config.mjs})
extra=()
python_source() { cp -r "$checkout/packages/python-sdk/." "$1/source" && python_suite "$1/source" "$1/source" "$1"; }
stamped python-checkout "$sources" python_source
stamped python-newest "$sources $python_newest" python_suite "$checkout/packages/python-sdk" "e2b==$python_newest"
stamped javascript "$sources $javascript_newest" javascript_suite
if [ -n "$interpreter" ]; then
  interpreter=$(cd "$interpreter" && pwd)
  interpreter_sources=$(content_hash "$interpreter/"{python,js} "$here/package.py")
  interpreter_source() {
    extra=(matplotlib)
    cp -r "$interpreter/python/." "$1/source" && python_suite "$1/source" "$1/source" "$1"
  }
  stamped interpreter-python "$interpreter_sources" interpreter_source
  stamped interpreter-javascript "$interpreter_sources $javascript_newest" interpreter_javascript
else
  rm -rf "$work"/interpreter-*
fi

data=$(mktemp -d "$repo/.hutch/scratch/conformance-XXXXXX")
network=${HUTCH_NODE_NETWORK_NUMBER:-3} lab=''
clean() {
  if [ -n "$lab" ]; then
    kill "$lab" 2>/dev/null || true
    wait "$lab" 2>/dev/null || true
  fi
  # The network is gone with the lab; processes, disks and control groups would outlive a lab that was killed. In a network of
  # its own, so that no other server's is touched.
  if [ -d "$data/node" ] && [ ! -e "$data.lab/purged" ]; then
    env -u HUTCH_DATA_DIR -u HUTCH_LISTEN -u HUTCH_CONFIG HUTCH_NODE_NETWORK_NUMBER="$network" \
      unshare --net -- "$hutch" sandbox purge --data-dir "$data" >"$results/purge.log" 2>&1 ||
      prefix_lines purge <"$results/purge.log"
  fi
  rm -rf --one-file-system "$data" "$data.lab"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

unshare --net --mount --propagation private -- python3 "$here/lab.py" --hutch "$hutch" --base "$base" --data-dir "$data" \
  --work "$work" --results "$results" --network-number "$network" --workers "${HUTCH_CONFORMANCE_WORKERS:-3}" \
  --only "${HUTCH_CONFORMANCE_ONLY:-}" </dev/null &
lab=$!
code=0
wait "$lab" || code=$?
lab=''
[ "$code" -eq 0 ] || exit "$code"

commit=$(git -C "$checkout" rev-parse --short HEAD 2>/dev/null || echo unknown)
versions=()
if [ -n "$interpreter" ]; then
  versions=(
    --interpreter-python "$(version_in 's/^version = "(.*)"$/\1/p' "$interpreter/python/pyproject.toml")"
    --interpreter-javascript "$(node -p 'require(process.argv[1]).version' "$interpreter/js/package.json")"
  )
fi
pages=(--markdown "$repo/docs/compatibility.md" --json "$repo/docs/compatibility.json")
[ -z "${HUTCH_CONFORMANCE_ONLY:-}" ] || pages=()
python3 "$here/report.py" --results "$results" --commit "$commit" \
  --python-checkout "$python_checkout" --python-newest "$python_newest" \
  --javascript-checkout "$javascript_checkout" --javascript-newest "$javascript_newest" "${versions[@]}" "${pages[@]}"
