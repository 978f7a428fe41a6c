#!/usr/bin/env bash
# Puts clients of Redis into the cache, once, whoever asks first: redis-py, go-redis and rueidis,
# Jedis and Lettuce, ioredis. redis-cli and redis-benchmark come with the Redis server.
set -euo pipefail
source "$(dirname "$0")/../places.sh"
source scripts/packages.sh

# Those with which tests run it.
go_flags="-mod=readonly -modcacherw -buildvcs=false -trimpath"

# Only a complete set ever has the final name.
get() {
  local place=$1 what=$2 how=$3
  [ -d "$place" ] && return
  exec 9>"$place.lock"
  flock 9
  [ -d "$place" ] && return
  say "getting $what"
  rm -rf "$place.unfinished"
  mkdir "$place.unfinished"
  "$how" "$place.unfinished"
  mv "$place.unfinished" "$place"
}

python_clients() {
  python3 -m pip install --quiet --disable-pip-version-check --target "$1" \
    -r "$clients/python/requirements.txt"
}

go_clients() {
  # What is built now need not be built when a test runs it; without -trimpath it would be, as its
  # place has another name then.
  GOMODCACHE=$1/modules GOCACHE=$1/build GOFLAGS="$go_flags" \
    nice go -C "$clients/go" build -o /dev/null .
}

java_clients() {
  mvn -q -B -Dstyle.color=never -f "$clients/java/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$1" -DincludeScope=runtime
}

node_clients() {
  cp "$clients/node/package.json" "$clients/node/package-lock.json" "$1"
  npm ci --prefix "$1" --silent --no-audit --no-fund
}

if ! command -v go >/dev/null; then
  echo "Go is missing. Install Go 1.24 or later: https://go.dev/dl" >&2
  exit 1
fi
command -v java >/dev/null || need "Java, 17 or later," default-jdk-headless
command -v mvn >/dev/null || need Maven maven
command -v node >/dev/null || need "Node.js" nodejs
command -v npm >/dev/null || need "npm" npm
command -v redis-benchmark >/dev/null || need "redis-cli and redis-benchmark" redis-tools

get "$redis_py_place" redis-py python_clients
get "$go_redis_place" "go-redis and rueidis" go_clients
get "$jedis_place" "Jedis and Lettuce" java_clients
get "$ioredis_place" ioredis node_clients
