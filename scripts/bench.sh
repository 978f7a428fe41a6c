#!/usr/bin/env bash
# Measures Guanxi on this machine, as its one argument says:
#   (none)   beside Redis and MariaDB, in every work; writes docs/benchmarks.md
#   quick    the same within two minutes, with figures that say little
#   growth   Guanxi at 1, 5 and 25 million edges; writes its part of the page
#   inside   the parts: commits and start-up in one process, the cluster on real servers
# Other arguments go to the load generator: scripts/bench.sh wire --help
# GUANXI_BIN names another binary, GUANXI_BENCH_DOCS another folder for the page.
set -euo pipefail
source "$(dirname "$0")/places.sh"

# What people run who build it themselves.
built=quick
docs=${GUANXI_BENCH_DOCS:-docs}
if [ -z "${GUANXI_BIN:-}" ]; then
  cargo build --locked --profile "$built" --quiet -p guanxi
  export GUANXI_BIN=$PWD/$target/$built/guanxi
  [[ $target != /* ]] || GUANXI_BIN=$target/$built/guanxi
fi
bench() { cargo run --locked --profile "$built" --quiet -p guanxi-bench -- "$@"; }
# The servers' directories: of a whole run some 25 GB.
place() {
  place=$(mktemp -d -p "$cache")
  trap 'rm -rf "$place"' EXIT
}

case "${1:-whole}" in
  whole | quick)
    scripts/services/redis.sh
    scripts/services/mariadb.sh
    place
    options=()
    [ "${1:-whole}" = whole ] || options=(--quick)
    bench whole --keep "$place" --docs "$docs" "${options[@]}"
    ;;
  growth)
    place
    bench growth --keep "$place" --docs "$docs"
    ;;
  inside)
    place
    bench commit --dir "$place/data"
    bench startup --dir "$place/data"
    bench cluster
    bench memory
    ;;
  *)
    bench "$@"
    ;;
esac
