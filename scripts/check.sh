#!/usr/bin/env bash
# Format, lints, and the dependencies' licences, sources and advisories.
set -euo pipefail
source "$(dirname "$0")/places.sh"

scripts/setup.sh
scripts/kafka_tls.sh
say "format"
cargo fmt --all --check
say "clippy"
clippy_all
say "clippy of the embedded service alone"
clippy_embedded
scripts/deny.sh
