#!/usr/bin/env bash
# Runs every test: lints, unit and contract and cluster tests, then end-to-end tests against the release build.
# The last line sums up all layers: "N passed, N failed, N skipped". What is skipped says why.
#
# What tests can rely on (all layers):
#   HUTCH_TEST_BASE_TAR   the base template's root file system, a tar file
#   HUTCH_TEST_GUEST_DIR  folder with the static envd and init
#   HUTCH_TEST_CRIU       CRIU program, absent where this kernel has none that works
# and tests/e2e/run.sh besides:
#   HUTCH_BIN, HUTCH_URL, HUTCH_API_KEY, HUTCH_DATA_DIR, HUTCH_PID of the running server
#   HUTCH_TEST_SOAK       the program hutch-soak
# A test that cannot run here prints "SKIP: name: reason" and returns.
# tests/e2e/run.sh ends with a line of the same form as this script's.
set -uo pipefail
export HUTCH_STEP=test
# shellcheck source=lib/common.sh
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/paths.sh
. "$(dirname "$0")/lib/paths.sh"
# shellcheck source=lib/jobs.sh
. "$(dirname "$0")/lib/jobs.sh"
# shellcheck source=lib/server.sh
. "$(dirname "$0")/lib/server.sh"

need_root "testing sandboxes"
command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup (rust-toolchain.toml names the version)"
cd "$repo" || exit 1
logs=$repo/target/test-logs
mkdir -p "$logs" "$tools_dir"
trap 'stop_jobs; stop_server' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 failed=0 skipped=0 broken=()

# Adds a layer's result. count NAME PASSED FAILED SKIPPED
count() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  say "$1: $2 passed, $3 failed, $4 skipped"
}

# Runs a check that is one test: check NAME COMMAND...
check() {
  local name=$1
  shift
  say "$name"
  if "$@"; then count "$name" 1 0 0; else
    broken+=("$name")
    count "$name" 0 1 0
  fi
}

# Prints one number of a test run: tally LOG passed|failed|skipped. It stands in nextest's summary or, without
# nextest, in the summaries of each test binary.
tally() {
  local lines words=$2
  lines=$(grep -E '^ *Summary \[' "$1" || grep -E '^test result: ' "$1")
  [ "$2" != skipped ] || words='skipped|ignored'
  grep -oE "[0-9]+ ($words)" <<<"$lines" | awk '{ n += $1 } END { print n + 0 }'
}

# Keeps a test run readable: no line per test that passed, and nothing after nextest's summary, where the output
# of passed tests follows for the log.
quieter() { awk '/^ *PASS \[/ || /^test .* \.\.\. ok$/ || over { next } { print; fflush() } /^ *Summary \[/ { over = 1 }'; }

# Runs a test command, shows its output and adds its numbers: run_tests NAME LOG COMMAND...
run_tests() {
  local name=$1 log=$2 code=0 ok bad skip notes
  shift 2
  say "$name"
  "$@" 2>&1 </dev/null | tee "$log" | quieter
  code=${PIPESTATUS[0]}
  ok=$(tally "$log" passed) bad=$(tally "$log" failed) skip=$(tally "$log" skipped)
  # A test that found out that it cannot run here has passed for the test runner.
  notes=$(grep -cE '^ *SKIP: ' "$log")
  ok=$((ok > notes ? ok - notes : 0)) skip=$((skip + notes))
  # It failed without a failed test: it did not compile, or it was killed.
  if [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
  [ "$bad" -eq 0 ] || broken+=("$name")
  count "$name" "$ok" "$bad" "$skip"
}

scripts/setup-host.sh tests || exit 1
criu_or_without() {
  scripts/setup-criu.sh "$tools_dir/criu" || say "going on without CRIU"
}
start_job criu criu_or_without
start_job base scripts/base-template.sh tar >"$logs/base-tar"
check "guest programs" scripts/build.sh guest
check "lint" scripts/lint.sh
wait_jobs
HUTCH_TEST_BASE_TAR=$(<"$logs/base-tar")
export HUTCH_TEST_BASE_TAR HUTCH_TEST_GUEST_DIR=$guest_dir
if [ -x "$tools_dir/criu/criu" ]; then export HUTCH_TEST_CRIU=$tools_dir/criu/criu; fi

if cargo nextest --version >/dev/null 2>&1; then
  run_tests "workspace tests" "$logs/workspace" cargo nextest run --locked --workspace --no-fail-fast \
    --no-tests pass --success-output final --failure-output immediate --status-level fail
  # The generated code's examples are not meant to be compiled.
  run_tests "documentation tests" "$logs/doc" cargo test --locked --workspace --exclude hutch-proto --doc --no-fail-fast
else
  run_tests "workspace tests" "$logs/workspace" cargo test --locked --workspace --no-fail-fast -- --show-output
fi

check "release build" scripts/build.sh server
check "bench build" scripts/build.sh bench
if [ -x "$hutch" ] && start_server; then
  say "end-to-end tests"
  HUTCH_TEST_SOAK=$repo/target/release/hutch-soak \
    HUTCH_BIN=$hutch HUTCH_URL=$server_url HUTCH_API_KEY=$server_key HUTCH_DATA_DIR=$server_data \
    HUTCH_PID=$server_pid tests/e2e/run.sh 2>&1 </dev/null | tee "$logs/e2e"
  code=${PIPESTATUS[0]}
  read -r ok bad skip < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$logs/e2e" |
    tail -1) || { ok=0 bad=1 skip=0; }
  if [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
  [ "$bad" -eq 0 ] || broken+=("end-to-end tests")
  count "end-to-end tests" "$ok" "$bad" "$skip"
  check "nothing is left on the machine" stop_server
else
  broken+=("end-to-end tests")
  count "end-to-end tests" 0 1 0
fi
trap - EXIT

if [ "$skipped" -gt 0 ]; then
  say "skipped:"
  grep -hE '^ *SKIP: ' "$logs"/workspace "$logs"/doc "$logs"/e2e 2>/dev/null | sed -E 's/^ *//' | sort -u | sed 's/^/  /'
fi
[ ${#broken[@]} -eq 0 ] || say "failed: $(printf '%s; ' "${broken[@]}" | sed 's/; $//')"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
