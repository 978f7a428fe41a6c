#!/usr/bin/env bash
# The black-box suites of both deployments, against a cluster: an instance of the real binary on a
# real MariaDB and Kafka, which are started once for all of them. What may differ from the embedded
# deployment is named in tests/src/differences.rs. Arguments go to the tests: a name, --nocapture.
# Without GUANXI_REQUIRE_SERVICES=1 missing servers are no failure: it is skipped, and says so.
set -euo pipefail
source "$(dirname "$0")/places.sh"

# Those that wait the most (an erasure waits for half a minute) run beside the others.
waiting=(grpc nodes_and_jobs watch)
others=(
  bad_input concurrency counters edge_rules edges groups grpc_errors grpc_reads import kinds
  list_joins lists reads resp
)

programs=$target/$profile
[ "$profile" = dev ] && programs=$target/debug

# Of the whole workspace, so that what the other tests were built of is not built anew.
tests() {
  local -n suites=$1
  shift
  cargo test "${everything[@]}" --no-fail-fast "${suites[@]/#/--test=}" "$@"
}

# Called again by guanxi-services, with the servers in the environment.
if [ -n "${GUANXI_TEST_MARIADB_PORT:-}" ]; then
  said=$(mktemp)
  trap 'rm -f "$said"' EXIT
  tests waiting -- "$@" >"$said" 2>&1 &
  beside=$!
  failed=
  tests others -- "$@" || failed=yes
  wait "$beside" || failed=yes
  cat "$said"
  [ -z "$failed" ]
  exit
fi

build_all

export GUANXI_BIN GUANXI_TEST_DEPLOYMENT=cluster
GUANXI_BIN=$(realpath -m "$programs/guanxi")
# Most of a test's time is waiting for a server's disk.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-8}
say "the black box on a cluster: ${others[*]} ${waiting[*]}"
"$programs/guanxi-services" scripts/cluster_suite.sh "$@"
