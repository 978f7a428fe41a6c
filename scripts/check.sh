#!/usr/bin/env bash
# Format, lints, and the dependencies' licences, sources and advisories.
set -euo pipefail
source "$(dirname "$0")/places.sh"

scripts/setup.sh
say "format"
cargo fmt --all --check
say "clippy"
cargo clippy --workspace --all-targets --profile "$profile" -- -D warnings
scripts/deny.sh
