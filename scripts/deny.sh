#!/usr/bin/env bash
# Runs cargo-deny. The tool is built once, into the cache; the advisory database is fetched where
# the network has it. What cannot be had is skipped, and said.
set -euo pipefail
source "$(dirname "$0")/places.sh"

cargo_deny_version=0.20.2
export PATH=$cache/tools/bin:$PATH

skipped() {
  printf '\n!! SKIPPED: %s\n!! why: %s\n\n' "$1" "$2" >&2
}

if ! cargo deny --version >/dev/null 2>&1; then
  say "building cargo-deny $cargo_deny_version into $cache/tools (minutes, once)"
  exec 9>"$cache/tools.lock"
  flock 9
  if ! cargo install --quiet --locked --root "$cache/tools" \
    "cargo-deny@$cargo_deny_version" 9>&-; then
    skipped "cargo-deny" "it could not be built or fetched (see above)"
    exit 0
  fi
fi

say "cargo-deny: bans, licenses, sources"
cargo deny --all-features check --hide-inclusion-graph bans licenses sources

say "cargo-deny: advisories"
if cargo deny fetch db >"$cache/deny-fetch.log" 2>&1; then
  cargo deny check advisories
else
  why=$(grep -m 1 -E '^fatal' "$cache/deny-fetch.log" || tail -n 1 "$cache/deny-fetch.log")
  skipped "cargo-deny advisories" "the advisory database cannot be fetched ($why)"
fi
