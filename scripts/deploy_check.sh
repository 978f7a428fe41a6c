#!/usr/bin/env bash
# Checks the files of deploy/ as far as that goes without a container engine, a cluster or an init
# system: the Compose file with docker compose's own library, the Kubernetes manifests with
# kustomize and the API server's own validation (both in deploy/check, built once), the units with
# systemd-analyze; and whatever settings each of them gives to guanxi, with the binary itself.
# Without GUANXI_REQUIRE_SERVICES=1 a tool that cannot be had is no failure: this says SKIPPED.
set -uo pipefail
source "$(dirname "$0")/places.sh"
source scripts/packages.sh

binary=${GUANXI_BIN:-$target/$profile/guanxi}
# Units with a greater exposure have lost some of their walls; 0 is none at all, 10 is no wall.
exposure_max=1.4
# The key is the content: a changed check is built anew, beside the old one.
check_place=$cache/deploy-check-$(cat deploy/check/go.* deploy/check/*.go | sha256sum | cut -c1-16)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong=0
skipped=()

complain() {
  printf '%s\n' "$*" >&2
  wrong=$((wrong + 1))
}

build_check() {
  [ -x "$check_place/deploy-check" ] && return
  if ! command -v go >/dev/null; then
    echo "Go is missing. Install Go 1.24 or later: https://go.dev/dl" >&2
    return 1
  fi
  exec 9>"$cache/deploy-check.lock"
  flock 9
  [ -x "$check_place/deploy-check" ] && return
  say "building deploy/check, about 2 minutes on two cores"
  # Only a complete build ever has the final name.
  rm -rf "$check_place.unfinished"
  mkdir "$check_place.unfinished"
  nice go -C deploy/check build -mod=readonly -buildvcs=false -ldflags='-s -w' \
    -o "$check_place.unfinished/deploy-check" . || return 1
  rm -rf "$check_place"
  mv "$check_place.unfinished" "$check_place"
}

# settings NAME FILE VARIABLE...: whether guanxi takes FILE with these variables and no others.
settings() {
  local name=$1 file=$2 found
  shift 2
  # Nothing listens on port 1, so that only the settings are looked at.
  found=$(env -i "$@" "$binary" doctor --json --server http://127.0.0.1:1 --config "$file" 2>&1 |
    grep '"check":"settings"')
  if [ -z "$found" ]; then
    complain "$name: guanxi doctor said nothing of the settings"
  elif grep -qv '"verdict":"ok"' <<<"$found"; then
    complain "$name: guanxi does not take its settings: $(grep -v '"verdict":"ok"' <<<"$found")"
  fi
}

# arguments NAME WORD...: whether guanxi knows this command and its flags.
arguments() {
  local name=$1
  shift
  "$binary" "$@" --help >"$work/help" 2>&1 || complain "$name: guanxi $*: $(head -1 "$work/help")"
}

check_compose_and_kubernetes() {
  local check=$check_place/deploy-check runs=$work/runs directory variables words
  "$check" compose deploy/compose.yaml "$runs" || wrong=$((wrong + 1))
  for directory in cluster roles; do
    "$check" kubernetes deploy/kubernetes/$directory "$runs" \
      deploy/kubernetes/cluster/secret.example.yaml || wrong=$((wrong + 1))
  done
  "$check" kubernetes deploy/kubernetes/embedded "$runs" || wrong=$((wrong + 1))
  cmp deploy/cluster.toml deploy/kubernetes/cluster/cluster.toml ||
    complain "the second is not the copy that it should be: cp deploy/cluster.toml deploy/kubernetes/cluster/"
  for directory in "$runs"/*/; do
    mapfile -t variables <"$directory/environment"
    mapfile -t words <"$directory/arguments"
    settings "$(basename "$directory")" "$directory/settings" "${variables[@]}"
    arguments "$(basename "$directory")" "${words[@]}"
  done
  say "checked $(find "$runs" -name arguments | wc -l) containers of compose.yaml and kubernetes/"
}

check_systemd() {
  local unit name exposure words
  # systemd-analyze looks for the program, which is not installed here, and for the files of the
  # environment, which it does not need.
  mkdir "$work/units"
  for unit in deploy/systemd/*.service; do
    name=$(basename "$unit")
    sed "s|=/usr/local/bin/guanxi |=$(realpath "$binary") |" "$unit" >"$work/units/$name"
    read -ra words < <(sed -n 's|^ExecStart=/usr/local/bin/guanxi ||p' "$unit")
    arguments "$name" "${words[@]}"
  done
  for unit in "$work"/units/*.service; do
    name=$(basename "$unit")
    # A key that it does not know is only a warning, and as wrong.
    if ! systemd-analyze verify --man=no "${unit/@.service/@1.service}" >"$work/said" 2>&1 ||
      [ -s "$work/said" ]; then
      complain "$name: $(cat "$work/said")"
    fi
    exposure=$(systemd-analyze security --offline=true --no-pager "$unit" 2>&1 |
      sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\) .*/\1/p')
    if [ -z "$exposure" ] || ! awk "BEGIN { exit !($exposure <= $exposure_max) }"; then
      complain "$name: its exposure is ${exposure:-unknown}, and at most $exposure_max is allowed"
    else
      say "$name: exposure $exposure of 10"
    fi
  done
  local cluster own
  mapfile -t cluster < <(grep -v '^#' deploy/systemd/cluster.env)
  mapfile -t own < <(grep -v '^#' deploy/systemd/work.env)
  settings guanxi@.service deploy/cluster.toml "${cluster[@]}"
  settings "guanxi@.service with work.env" deploy/cluster.toml "${cluster[@]}" "${own[@]}"
  settings guanxi.service guanxi.toml "$(sed -n 's/^Environment=//p' deploy/systemd/guanxi.service)"
}

if [ ! -x "$binary" ]; then
  echo "$binary is missing. Build it: cargo build --profile $profile -p guanxi" >&2
  exit 1
fi
if build_check; then
  check_compose_and_kubernetes
else
  skipped+=("the Compose file and the Kubernetes manifests")
fi
if command -v systemd-analyze >/dev/null || (need systemd-analyze systemd); then
  check_systemd
else
  skipped+=("the systemd units")
fi

for what in "${skipped[@]}"; do
  say "SKIPPED: $what; what is missing stands above" >&2
done
if [ ${#skipped[@]} -gt 0 ] && [ "${GUANXI_REQUIRE_SERVICES:-}" = 1 ]; then
  say "GUANXI_REQUIRE_SERVICES=1 asks for every tool, so this fails" >&2
  exit 1
fi
if [ "$wrong" -gt 0 ]; then
  say "deploy/ has errors; they stand above" >&2
  exit 1
fi
