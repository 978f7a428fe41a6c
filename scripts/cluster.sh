#!/usr/bin/env bash
# A cluster on this machine, to try: MariaDB, Kafka, Redis and two instances, all on loopback, with what
# they keep in ./guanxi-cluster (GUANXI_CLUSTER_DIR names another place). It runs until Ctrl-C or
# SIGTERM and stops everything then; the next run goes on with the same content. GUANXI_BIN names a
# binary that is built already.
#
#   scripts/cluster.sh           runs until Ctrl-C or SIGTERM
#   scripts/cluster.sh --check   starts, tries what it would print, stops; fails when anything does
set -uo pipefail
source "$(dirname "$0")/places.sh"

# Generous, because a first start on a busy machine takes long; a failure is told at once.
start_seconds_max=120
stop_seconds_max=30
# Few enough to start in a moment, enough to be shared by two instances.
partitions=8
# Any id of the right form: it never meets another Kafka.
kafka_cluster_id=Z3VhbnhpLWNsdXN0ZXItMQ

case ${1:-} in
  "" | --check) mode=${1:-run} ;;
  *)
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

place=$(realpath -m "${GUANXI_CLUSTER_DIR:-guanxi-cluster}")
logs=$place/logs
config=$place/cluster.toml
# What was started, in order: names, and the process and log file of each.
names=()
declare -A processes log_of

fail() {
  printf '\n== FAILED: %s\n' "$1" >&2
  if [ -n "${2:-}" ]; then
    printf '   The end of its log, %s:\n' "$2" >&2
    tail -n 8 "$2" | sed 's/^/   | /' >&2
  fi
  exit 1
}

alive() { kill -0 "${processes[$1]}" 2>/dev/null; }

# In a session of its own, so that Ctrl-C reaches this script alone and it can stop things in order.
# Should the script be killed, the kernel ends what it started. All of them keep the lock (9) open:
# nobody starts here again before the last one is gone.
start() {
  local name=$1
  log_of[$name]=$logs/$name.log
  shift
  setsid setpriv --pdeathsig TERM "$@" >"${log_of[$name]}" 2>&1 </dev/null &
  processes[$name]=$!
  # Its end is told in words of ours.
  disown
  names+=("$name")
}

# Waits until a command succeeds, and fails at once when the process has ended.
await() {
  local name=$1 deadline=$((SECONDS + start_seconds_max))
  shift
  until "$@" 2>/dev/null; do
    alive "$name" || fail "$name has ended while it started" "${log_of[$name]}"
    [ $SECONDS -lt $deadline ] || fail "$name was not ready in $start_seconds_max s" "${log_of[$name]}"
    sleep 0.1
  done
}

# The last started is the first to stop: instances, then the log, then the database.
stop_all() {
  local index name deadline
  trap '' INT TERM HUP
  [ ${#names[@]} = 0 ] || say "stopping"
  for ((index = ${#names[@]} - 1; index >= 0; index--)); do
    name=${names[index]}
    kill -TERM "${processes[$name]}" 2>/dev/null || continue
    deadline=$((SECONDS + stop_seconds_max))
    while alive "$name" && [ $SECONDS -lt $deadline ]; do sleep 0.05; done
    if alive "$name"; then
      say "$name did not stop in $stop_seconds_max s and is killed; its log: ${log_of[$name]}" >&2
      kill -KILL "${processes[$name]}"
    fi
  done
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The first port from the given one on that nobody listens on.
free_port() {
  local port=$1
  while listens "$port"; do port=$((port + 1)); done
  echo "$port"
}

start_mariadb() {
  local content=$place/mariadb user=()
  [ "$(id -u)" = 0 ] && user=(--user=root)
  if [ ! -d "$content" ]; then
    # Only a complete one ever has the final name.
    rm -rf "$content.unfinished"
    mariadb-install-db --no-defaults --datadir="$content.unfinished" "${user[@]}" \
      --auth-root-authentication-method=normal --skip-test-db >"$logs/mariadb-install.log" 2>&1 ||
      fail "mariadb-install-db could not make a database" "$logs/mariadb-install.log"
    mv "$content.unfinished" "$content"
  fi
  echo 'CREATE DATABASE IF NOT EXISTS guanxi;' >"$place/mariadb.sql"
  mariadb_port=$(free_port 7431)
  start mariadb mariadbd --no-defaults "${user[@]}" --datadir="$content" --socket=sock \
    --pid-file=pid --port="$mariadb_port" --bind-address=127.0.0.1 --skip-name-resolve \
    --init-file="$place/mariadb.sql" --innodb-flush-log-at-trx-commit=1 --max-connections=500
  await mariadb listens "$mariadb_port"
}

start_kafka() {
  local settings=$place/kafka.properties controller_port
  kafka_port=$(free_port 7441)
  controller_port=$(free_port $((kafka_port + 1)))
  {
    cat tests/services/kafka/server.properties
    echo "controller.quorum.voters=1@127.0.0.1:$controller_port"
    echo "listeners=PLAINTEXT://127.0.0.1:$kafka_port,CONTROLLER://127.0.0.1:$controller_port"
    echo "advertised.listeners=PLAINTEXT://127.0.0.1:$kafka_port"
    echo "log.dirs=$place/kafka"
  } >"$settings"
  if [ ! -f "$place/kafka/meta.properties" ]; then
    java -XX:TieredStopAtLevel=1 -cp "$kafka_place/*" kafka.tools.StorageTool format \
      -t "$kafka_cluster_id" -c "$settings" >"$logs/kafka-format.log" 2>&1 ||
      fail "Kafka could not format its directory" "$logs/kafka-format.log"
  fi
  start kafka java -Xms128m -Xmx384m -Dlog4j2.level=INFO -cp "$kafka_place/*" kafka.Kafka "$settings"
  await kafka grep -q 'Kafka Server started' "$logs/kafka.log"
}

# It keeps nothing: what it holds is filled again.
start_redis() {
  redis_port=$(free_port 7451)
  start redis redis-server --port "$redis_port" --bind 127.0.0.1 --save '' --appendonly no \
    --dir "$place"
  await redis listens "$redis_port"
}

migrate() {
  cat >"$config" <<END
mode = "cluster"
[store]
url = "mysql://root@127.0.0.1:$mariadb_port/guanxi"
[log]
brokers = "127.0.0.1:$kafka_port"
partitions = $partitions
[cache]
redis = "redis://127.0.0.1:$redis_port"
END
  "$binary" migrate --config "$config" >"$logs/migrate.log" 2>&1 ||
    fail "guanxi migrate could not make tables and topics" "$logs/migrate.log"
}

start_instance() {
  local name=$1 port=$2
  start "$name" "$binary" serve --config "$config" --listen "127.0.0.1:$port"
  await "$name" grep -q 'is ready on' "$logs/$name.log"
}

# What a newcomer may try, line by line; --check runs the same lines.
tour() {
  cat <<END
curl -sfSw '\\n' -X PUT $one/v1/edges/follow/1/2
token=\$($binary put follow 3 2 --server $one --json | sed 's/.*"token":"\([^"]*\)".*/\1/')
$binary list follow 2 incoming --server $two --at-least \$token
curl -sfSw '\\n' $two/v1/edges/follow/2/incoming -H "guanxi-at-least: \$token"
$binary tally follow 1 2 --server $two --at-least \$token
curl -sfSw '\\n' $two/readyz
$binary audit --server $one
$binary dead-letters list --server $one
END
}

watch_line() { echo "$binary watch --from earliest --server $two"; }

print_tour() {
  cat <<END

Two instances of one cluster are ready: $one and $two
Both have a page of all calls at /docs. Their settings: $config
Logs: $logs

Watch on one what is written on the other (in a terminal of its own):

  $(watch_line)

Put on one and list on the other: whoever shows the token of a write sees that write at once,
others see incoming lists and tallies a moment later. Then look how it fares:

$(tour | sed 's/^/  /')

End one instance and go on with the other:  kill ${processes[instance-1]}
End Redis and see that checks stay right:   kill ${processes[redis]}
The log itself, where kcat is installed:    kcat -C -b 127.0.0.1:$kafka_port -t guanxi.records

Ctrl-C, or SIGTERM to this script, stops everything. The next run goes on with the same content;
to begin anew, remove
$place
END
}

check() {
  local seen
  tour >"$place/tour.sh"
  bash -euo pipefail -x "$place/tour.sh" | tee "$place/tour.out" ||
    fail "a line of the tour did not succeed"
  ! grep -q '^none' "$place/tour.out" || fail "a list of the tour did not show what was put"
  # It never ends by itself.
  seen=$(timeout 20 $(watch_line) --json | head -n 1)
  [ -n "$seen" ] || fail "watch showed nothing"
  say "everything that was tried succeeded"
}

# An instance may end, the other goes on, and so may Redis; without database or log there is nothing
# to try.
run() {
  local name told=
  while alive instance-1 || alive instance-2; do
    for name in mariadb kafka; do
      alive $name || fail "$name has ended" "${log_of[$name]}"
    done
    for name in instance-1 instance-2 redis; do
      if ! alive $name && [[ $told != *$name* ]]; then
        say "$name has ended; its log: ${log_of[$name]}"
        told+=" $name"
      fi
    done
    sleep 0.5
  done
  say "no instance is left"
}

PATH=$PATH:/usr/sbin:/usr/local/sbin
for program in flock setsid setpriv curl; do
  command -v $program >/dev/null || fail "$program is missing; it comes with util-linux (curl: curl)"
done
scripts/services/mariadb.sh && scripts/services/kafka.sh && scripts/services/redis.sh ||
  fail "MariaDB, Kafka or Redis is not there; what is missing stands above"
binary=${GUANXI_BIN:-}
if [ -z "$binary" ]; then
  cargo build --profile quick --locked -p guanxi || fail "the binary could not be built"
  binary=$target/quick/guanxi
fi
[ -x "$binary" ] || fail "there is no program $binary"
# They are for this script; the service would take them for settings.
unset GUANXI_BIN GUANXI_CLUSTER_DIR GUANXI_CACHE

mkdir -p "$logs" || fail "$logs cannot be made"
exec 9>"$place/lock"
flock -w 10 9 || fail "another cluster runs in $place: stop it, or set GUANXI_CLUSTER_DIR"
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "starting MariaDB"
start_mariadb
say "starting Kafka"
start_kafka
say "starting Redis"
start_redis
say "making tables and topics"
migrate
say "starting two instances"
one_port=$(free_port 7420)
start_instance instance-1 "$one_port"
two_port=$(free_port $((one_port + 1)))
start_instance instance-2 "$two_port"
one=http://127.0.0.1:$one_port
two=http://127.0.0.1:$two_port

if [ "$mode" = --check ]; then
  check
else
  print_tour
  # From here on these are how it is meant to end.
  trap 'exit 0' INT TERM
  run
fi
