#!/usr/bin/env bash
# Runs every cargo test of the workspace to the end, a few programs at a time, as most of them wait
# most of their time (for leases, deadlines and other servers). A program that failed is run once more,
# alone: on a crowded machine a real server may answer too late for a deadline. What passes only then
# is named as unsteady in the last lines, never hidden; what fails twice, or more programs than a few,
# fails. Arguments go to `cargo test`.
set -uo pipefail
source "$(dirname "$0")/places.sh"

again_max=3
at_once=${GUANXI_TESTS_AT_ONCE:-3}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Of the whole workspace each time, so that nothing is built anew with other features.
if ! cargo test "${everything[@]}" --no-run; then
  exit 1
fi

# What a program said is shown when it has ended, in one piece.
run_one() {
  local program=$1 log status=0 begun=$SECONDS
  log=$logs/${program//[ -]/_}
  shift
  # shellcheck disable=SC2086 # several words
  cargo test "${everything[@]}" --no-fail-fast $program "$@" >"$log" 2>&1 || status=$?
  [ "$status" = 0 ] || echo "$program" >>"$logs/failed"
  exec 9>"$logs/turn"
  flock 9
  cat "$log"
  say "$program took $((SECONDS - begun)) s"
}

names='import json, sys
packages = json.load(sys.stdin)["packages"]
targets = [target for package in packages for target in package["targets"]]
names = {target["name"] for target in targets if "test" in target["kind"]}
# Those that try clusters take longest, so they begin first.
print(*sorted(names, key=lambda name: (not name.startswith("cluster_"), name)), sep="\n")'
mapfile -t programs < <(cargo metadata --locked --no-deps --format-version 1 | python3 -c "$names")
if [ "${#programs[@]}" = 0 ]; then
  say "cargo metadata names no test programs" >&2
  exit 1
fi
for program in "${programs[@]/#/--test }" "--lib --bins"; do
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
    wait -n
  done
  run_one "$program" "$@" &
done
wait

[ -f "$logs/failed" ] || exit 0
mapfile -t failed < <(sort "$logs/failed")
say "failed: ${failed[*]}"
[ "${#failed[@]}" -le "$again_max" ] || exit 1
for program in "${failed[@]}"; do
  say "once more, alone: $program"
  # shellcheck disable=SC2086 # several words
  cargo test "${everything[@]}" $program || exit 1
done
for program in "${failed[@]}"; do
  printf '\n!! UNSTEADY: %s failed at first and passed alone\n' "$program" >&2
done
