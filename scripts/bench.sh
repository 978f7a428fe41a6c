#!/usr/bin/env bash
# Measures durable puts after a load, then start-up on the directory that this left, then the
# cluster on real servers against statements by hand, and its reads against those of the embedded
# service. Arguments instead go to the load generator:
# scripts/bench.sh cluster --help
set -euo pipefail
source "$(dirname "$0")/places.sh"

export GUANXI_BIN=${GUANXI_BIN:-$target/release/guanxi}
bench() { cargo run --locked --release --quiet -p guanxi-bench -- "$@"; }

if [ $# -gt 0 ]; then
  bench "$@"
  exit
fi
place=$(mktemp -d -p "$cache")
trap 'rm -rf "$place"' EXIT
bench commit --dir "$place/data"
bench startup --dir "$place/data"
bench cluster
cargo build --locked --release --quiet -p guanxi
bench memory
