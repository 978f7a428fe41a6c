#!/usr/bin/env bash
# Builds the TiDB server into the cache, once, whoever asks first.
set -euo pipefail
source "$(dirname "$0")/../places.sh"

[ -x "$tidb_place/tidb-server" ] && exit 0
if ! command -v go >/dev/null; then
  echo "Go is missing. Install Go 1.23.6 or later: https://go.dev/dl" >&2
  exit 1
fi

exec 9>"$tidb_place.lock"
flock 9
[ -x "$tidb_place/tidb-server" ] && exit 0

say "building TiDB $tidb_version, minutes on two cores"
# Only a complete build ever has the final name.
unfinished=$tidb_place.unfinished
rm -rf "$unfinished"
mkdir "$unfinished"
nice go -C tests/services/tidb build -mod=readonly -buildvcs=false -ldflags='-s -w' \
  -o "$unfinished/tidb-server" github.com/pingcap/tidb/cmd/tidb-server
"$unfinished/tidb-server" -V >/dev/null
rm -rf "$tidb_place"
mv "$unfinished" "$tidb_place"
