#!/usr/bin/env bash
# Sees to it that the real servers that tests start are there. Without GUANXI_REQUIRE_SERVICES=1 a
# server that cannot be had is no failure: its tests are skipped, and both say so.
set -uo pipefail
source "$(dirname "$0")/places.sh"

missing=()
for service in mariadb redis kafka tidb chromium resp_clients; do
  scripts/services/$service.sh || missing+=("$service")
done
[ ${#missing[@]} = 0 ] && exit 0

for service in "${missing[@]}"; do
  say "NOT THERE: $service. What it lacks stands above; scripts/services/$service.sh tries again." >&2
done
if [ "${GUANXI_REQUIRE_SERVICES:-}" = 1 ]; then
  say "GUANXI_REQUIRE_SERVICES=1 asks for every server, so this fails" >&2
  exit 1
fi
say "SKIPPED: every test against ${missing[*]}" >&2
