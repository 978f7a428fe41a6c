#!/usr/bin/env bash
# Runs cargo-deny. The tool is built once, into the cache; the advisory database is fetched from
# GitHub. A check that cannot be done is a failure. A machine from which the database cannot be
# reached may say so with GUANXI_WITHOUT_ADVISORIES=1: then the rest is checked, and what was not is
# said at the end.
set -euo pipefail
source "$(dirname "$0")/places.sh"

cargo_deny_version=0.20.2
export PATH=$cache/tools/bin:$PATH

if ! cargo deny --version >/dev/null 2>&1; then
  say "building cargo-deny $cargo_deny_version into $cache/tools (minutes, once)"
  exec 9>"$cache/tools.lock"
  flock 9
  if ! cargo install --quiet --locked --root "$cache/tools" \
    "cargo-deny@$cargo_deny_version" 9>&-; then
    say "FAILED: cargo-deny could not be built (see above), so the dependencies were not checked" >&2
    exit 1
  fi
fi

say "cargo-deny: bans, licenses, sources"
cargo deny --all-features check --hide-inclusion-graph bans licenses sources

if [[ ${GUANXI_WITHOUT_ADVISORIES:-} == 1 ]]; then
  printf '\n!! NOT CHECKED: advisories, as GUANXI_WITHOUT_ADVISORIES=1 asks for.\n' >&2
  printf '!! Whether a dependency has a known hole, or was yanked, is not known.\n\n' >&2
  exit 0
fi
say "cargo-deny: advisories"
if ! cargo deny fetch db >"$cache/deny-fetch.log" 2>&1; then
  why=$(grep -m 1 -E '^fatal' "$cache/deny-fetch.log" || tail -n 1 "$cache/deny-fetch.log")
  say "FAILED: the advisory database cannot be fetched ($why), so advisories were not checked." >&2
  say "Where it cannot be reached, GUANXI_WITHOUT_ADVISORIES=1 checks the rest, and says so." >&2
  exit 1
fi
# Without its index nothing tells whether a crate was yanked; by itself that is a warning only.
cargo deny check advisories -D index-failure -D index-cache-load-failure
