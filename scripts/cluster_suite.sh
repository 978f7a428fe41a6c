#!/usr/bin/env bash
# The black-box suites of both deployments, against a cluster: an instance of the real binary on a
# real MariaDB and Kafka, which are started once for all of them. What may differ from the embedded
# deployment is named in tests/src/differences.rs. Arguments go to the tests: a name, --nocapture.
# Without GUANXI_REQUIRE_SERVICES=1 missing servers are no failure: it is skipped, and says so.
set -euo pipefail
source "$(dirname "$0")/places.sh"

profile=${GUANXI_TEST_PROFILE:-$profile}
suites=(
  bad_input concurrency counters edge_rules edges groups grpc grpc_errors grpc_reads import kinds
  list_joins lists nodes_and_jobs reads watch
)

programs=$target/$profile
[ "$profile" = dev ] && programs=$target/debug

cargo build --locked --profile "$profile" -p guanxi
cargo build --locked --profile "$profile" -p guanxi-services
export GUANXI_BIN
GUANXI_BIN=$(realpath -m "$programs/guanxi")

# Of the whole workspace, so that what the other tests were built of is not built anew.
say "the black box on a cluster: ${suites[*]}"
# Most of a test's time is waiting for a server's disk, and an erasure waits for half a minute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-8}
GUANXI_TEST_DEPLOYMENT=cluster "$programs/guanxi-services" \
  cargo test --locked --profile "$profile" --no-fail-fast --workspace \
  "${suites[@]/#/--test=}" -- "$@"
