#!/usr/bin/env bash
# Runs schemathesis with all of its checks over the description that a running guanxi serves.
# Needs GUANXI_BIN. A failure is repeated with: SCHEMATHESIS_SEED=… scripts/schemathesis.sh
set -euo pipefail
source "$(dirname "$0")/places.sh"

: "${GUANXI_BIN:?set it to the guanxi binary under test}"
seed=${SCHEMATHESIS_SEED:-7420}
ready_seconds_max=60

scripts/get_schemathesis.sh

place=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then
    kill -9 "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$place"
}
trap finish EXIT

# The loop below may look before the server's process has opened the file.
: >"$place/said"
env -u GUANXI_BIN -u GUANXI_CACHE "$GUANXI_BIN" serve --listen 127.0.0.1:0 --data-dir "$place/data" \
  >"$place/said" 2>"$place/log" 9>&- &
server=$!
for ((waited = 0; ; waited++)); do
  url=$(sed -n 's/^guanxi is ready on \(http:.*\)$/\1/p' "$place/said")
  [ -n "$url" ] && break
  if ! kill -0 "$server" 2>/dev/null || [ "$waited" -ge $((ready_seconds_max * 20)) ]; then
    echo "guanxi did not become ready:" >&2
    cat "$place/log" >&2
    exit 1
  fi
  sleep 0.05
done

# What schemathesis.toml's dictionaries name: an edge, a pending one, groups, and a real token.
token=$(python3 - "$url" <<'PYTHON'
import json, sys, urllib.request

def send(method, path, body):
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(),
                                     {"content-type": "application/json"}, method=method)
    return json.load(urllib.request.urlopen(request, timeout=20))

for source in (1, 2, 3):
    for name in ("friends", "family"):
        send("POST", f"/v1/groups/follow/{source}", {"name": name})
send("PUT", "/v1/edges/follow/1/2", {"group": "friends"})
print(send("PUT", "/v1/edges/follow/1/3", {"approval": True})["token"])
PYTHON
)
export SCHEMATHESIS_TOKEN=$token

say "schemathesis $schemathesis_version against $url, seed $seed"
status=0
"$schemathesis_place/bin/schemathesis" run "$url/openapi.json" --checks all --seed "$seed" \
  --no-color || status=$?
if [ "$status" != 0 ]; then
  echo "--- the last lines of the server's log ---" >&2
  tail -n 40 "$place/log" >&2
fi
if ! kill -0 "$server" 2>/dev/null; then
  echo "guanxi did not survive schemathesis" >&2
  exit 1
fi
exit "$status"
