# Runs a server on a data directory, a port and a network of its own, for tests and measurements. Source it after
# paths.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034

server_pid='' server_data='' server_url='' server_key=''
# Beside the server of `make run`, which has number 0, and those that tests start themselves, which begin at 2.
server_network=1

# Runs a command of the server's program without the caller's settings: own_hutch SUBCOMMAND...
own_hutch() {
  env -u HUTCH_DATA_DIR -u HUTCH_LISTEN -u HUTCH_CONFIG HUTCH_NODE_NETWORK_NUMBER="$server_network" "$hutch" "$@"
}

# Starts it with the base template, and with one of the same root for each NAME given, of the default memory or as many
# MiB; sets server_pid, server_data, server_url and server_key: start_server [NAME[:MIB]...]
# Its output goes to $server_data.log. Returns 1, after saying why, when it does not come up.
start_server() {
  local port name tar deadline=$((SECONDS + 120))
  mkdir -p "$repo/.hutch/scratch"
  server_data=$(mktemp -d "$repo/.hutch/scratch/XXXXXX")
  HUTCH_DATA_DIR=$server_data HUTCH_TOOLS_DIR=$tools_dir "$repo/scripts/base-template.sh" import || return 1
  for name in "$@"; do
    tar=$("$repo/scripts/base-template.sh" tar) || return 1
    own_hutch template import --data-dir "$server_data" --name "${name%%:*}" --rootfs "$tar" \
      --memory-mib "$(sed -nE 's/^[^:]+:?//; s/^$/512/; p' <<<"$name")" >/dev/null || return 1
  done
  server_key=$(own_hutch key create --name scripts --data-dir "$server_data") || return 1
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  server_url=http://127.0.0.1:$port
  # Not through own_hutch, so that the process id is the server's.
  HUTCH_NODE_NETWORK_NUMBER=$server_network HUTCH_NODE_CRIU=${HUTCH_TEST_CRIU:-} env -u HUTCH_DATA_DIR -u HUTCH_LISTEN -u HUTCH_CONFIG \
    "$hutch" serve --listen "127.0.0.1:$port" --data-dir "$server_data" </dev/null >"$server_data.log" 2>&1 &
  server_pid=$!
  until curl --silent --fail --max-time 2 --output /dev/null "$server_url/health"; do
    kill -0 "$server_pid" 2>/dev/null || { server_failed "the server ended during its start" && return 1; }
    [ "$SECONDS" -lt "$deadline" ] || { server_failed "the server did not answer within two minutes" && return 1; }
    sleep 0.1
  done
  say "server on $server_url, data in $server_data"
}

# Shows the last lines of the server's output and says what went wrong.
server_failed() {
  tail -n 30 "$server_data.log" | prefix_lines server
  say "error: $1; its output is above"
}

# Stops the server, removes its sandboxes and its data. Returns 1, after saying why, when it did not end or when
# something of its sandboxes is left on the machine.
stop_server() {
  local code=0 left
  [ -n "$server_data" ] || return 0
  end_server || code=1
  if ! own_hutch sandbox purge --data-dir "$server_data"; then
    say "the sandboxes could not be removed"
    code=1
  fi
  left=$(server_leftovers)
  if [ -n "$left" ]; then
    prefix_lines "$HUTCH_STEP: still there" <<<"$left"
    code=1
  else
    rm -rf --one-file-system "$server_data" "$server_data.log"
  fi
  server_data=''
  return "$code"
}

# Ends the server's process; its sandboxes go on.
end_server() {
  local pid=$server_pid deadline=$((SECONDS + 30))
  server_pid=''
  [ -n "$pid" ] || return 0
  kill -TERM "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
  kill -0 "$pid" 2>/dev/null || {
    wait "$pid" 2>/dev/null || true
    return 0
  }
  say "the server did not end within 30 s of SIGTERM"
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  return 1
}

# Lists what sandboxes of the stopped server still hold.
server_leftovers() {
  local node=$server_data/node
  # The first characters of the hash by which mounts and control groups are named: hash_of LENGTH
  hash_of() { printf '%s' "$node" | sha256sum | cut -c "1-$1"; }
  grep -F -e "$server_data/" -e "/run/hutch/$(hash_of 12)/" /proc/self/mountinfo | sed 's/^/mount /'
  losetup --list --noheadings --output NAME,BACK-FILE | grep -F "$server_data/" | sed 's/^/loop device /'
  find /sys/fs/cgroup -maxdepth 2 -type d -name "hutch-$(hash_of 10)" | sed 's/^/control group /'
  ip -oneline link show | grep -oE "^[0-9]+: ht$server_network-[0-9]+" | sed 's/^[0-9]*:/link/'
  nft list tables 2>/dev/null | grep -x "table inet hutch$server_network"
}
