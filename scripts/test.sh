#!/usr/bin/env bash
# Everything that must hold before a change lands, in the order in which it fails fastest.
# Stops at the first failure; the last lines say what ran, what failed and what did not run.
set -uo pipefail
source "$(dirname "$0")/places.sh"

export GUANXI_BIN
GUANXI_BIN=$(realpath -m "$target/$profile/guanxi")

# The real servers are got while crates compile: most of that is waiting for the network.
servers_log=$(mktemp)
servers=
trap 'rm -f "$servers_log"; [ -z "$servers" ] || kill "$servers" 2>/dev/null' EXIT
begin_servers() {
  scripts/services.sh >"$servers_log" 2>&1 &
  servers=$!
}
await_servers() {
  local status=0
  wait "$servers" || status=$?
  servers=
  cat "$servers_log"
  return "$status"
}

steps=(
  "set-up|scripts/setup.sh"
  "OpenSSL, for Kafka|scripts/kafka_tls.sh"
  "format|cargo fmt --all --check"
  "real servers, begun|begin_servers"
  "build|build_all"
  "clippy|clippy_all"
  "clippy of the embedded service alone|clippy_embedded"
  "real servers|await_servers"
  "deploy/|scripts/deploy_check.sh"
  "unit tests, simulator, black box, power loss|scripts/cargo_tests.sh"
  "black box on a cluster|scripts/cluster_suite.sh"
  "schemathesis|scripts/schemathesis.sh"
)

summary=()
failed=
for step in "${steps[@]}"; do
  name=${step%%|*}
  command=${step#*|}
  if [ -n "$failed" ]; then
    summary+=("not run  $name")
    continue
  fi
  say "$name: $command"
  begun=$SECONDS
  if $command; then
    summary+=("passed   $name ($((SECONDS - begun)) s)")
  else
    summary+=("FAILED   $name ($((SECONDS - begun)) s): $command")
    failed=yes
  fi
done

printf '\n'
say "make test took $SECONDS s"
printf '   %s\n' "${summary[@]}"
if [ -n "$failed" ]; then
  say "FAILED"
  exit 1
fi
say "all passed"
