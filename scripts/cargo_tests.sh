#!/usr/bin/env bash
# Runs every cargo test of the workspace to the end: the programs that try clusters beside all others,
# as they wait most of their time (for leases, deadlines and other servers). A program that failed is
# run once more, alone: on a crowded machine a real server may answer too late for a deadline. What
# passes only then is named as unsteady in the last lines, never hidden; what fails twice, or more
# programs than a few, fails. Arguments go to `cargo test`.
set -uo pipefail
source "$(dirname "$0")/places.sh"

again_max=3
log=$(mktemp) beside_log=$(mktemp)
trap 'rm -f "$log" "$beside_log"' EXIT

names='import json, sys
packages = json.load(sys.stdin)["packages"]
targets = [target for package in packages for target in package["targets"]]
print(*sorted({target["name"] for target in targets if "test" in target["kind"]}), sep="\n")'
mapfile -t programs < <(cargo metadata --locked --no-deps --format-version 1 | python3 -c "$names")
clusters=() others=()
for program in "${programs[@]}"; do
  case $program in
    cluster_*) clusters+=(--test "$program") ;;
    *) others+=(--test "$program") ;;
  esac
done
if [ "${#clusters[@]}" = 0 ] || [ "${#others[@]}" = 0 ]; then
  say "cargo metadata names no test programs" >&2
  exit 1
fi

cargo test "${everything[@]}" --no-fail-fast "${clusters[@]}" "$@" >"$beside_log" 2>&1 &
beside=$!
cargo test "${everything[@]}" --no-fail-fast --lib --bins "${others[@]}" "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
say "the programs that try clusters, which ran beside these"
wait "$beside" || status=$?
cat "$beside_log"
[ "$status" = 0 ] && exit 0

# Cargo's last lines name what failed: `-p guanxi-tests --test watch`
mapfile -t failed < <(cat "$log" "$beside_log" |
  sed -n 's/^ *`-p [a-z-]* \(--\(test\|lib\|bin\)[ a-z_]*\)`$/\1/p' | sort -u)
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt "$again_max" ]; then
  exit "$status"
fi
for program in "${failed[@]}"; do
  say "once more, alone: $program"
  # Of the whole workspace, so that nothing is built anew with other features.
  # shellcheck disable=SC2086 # several words
  cargo test "${everything[@]}" $program || exit 1
done
for program in "${failed[@]}"; do
  printf '\n!! UNSTEADY: %s failed at first and passed alone\n' "$program" >&2
done
