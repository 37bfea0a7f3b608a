# Runs slow steps next to each other with visible progress. Source it after common.sh.
# shellcheck shell=bash

declare -A HUTCH_JOBS=()

# Starts a command in a process group of its own; its lines are marked with NAME unless they mark themselves.
#   start_job NAME COMMAND [ARGUMENT...]
start_job() {
  local name=$1
  shift
  set -m
  "$@" </dev/null &
  set +m
  HUTCH_JOBS[$name]=$!
}

# Waits for every started job. Prints a sign of life every 30 seconds. When a job fails the others are stopped,
# and the script ends with a line that names it.
wait_jobs() {
  local name started=$SECONDS shown=$SECONDS
  while [ ${#HUTCH_JOBS[@]} -gt 0 ]; do
    for name in "${!HUTCH_JOBS[@]}"; do
      kill -0 "${HUTCH_JOBS[$name]}" 2>/dev/null && continue
      wait "${HUTCH_JOBS[$name]}" || {
        unset "HUTCH_JOBS[$name]"
        stop_jobs
        die "the step '$name' failed: see its lines above"
      }
      unset "HUTCH_JOBS[$name]"
    done
    [ ${#HUTCH_JOBS[@]} -gt 0 ] || break
    if [ $((SECONDS - shown)) -ge 30 ]; then
      shown=$SECONDS
      say "$((SECONDS - started)) s; still at work: ${!HUTCH_JOBS[*]}"
    fi
    sleep 0.2
  done
}

# Stops the jobs that are still running, with everything they started.
stop_jobs() {
  local name
  for name in "${!HUTCH_JOBS[@]}"; do
    kill -TERM -- "-${HUTCH_JOBS[$name]}" 2>/dev/null || true
  done
  for name in "${!HUTCH_JOBS[@]}"; do
    wait "${HUTCH_JOBS[$name]}" 2>/dev/null || true
    unset "HUTCH_JOBS[$name]"
  done
}
