# Sourced by the other scripts: where things are kept.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Tools that are slow to get stay outside the clone, for every clone of this user.
cache=${GUANXI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/guanxi}
target=${CARGO_TARGET_DIR:-target}
# Test builds: as fast as a release, with every assertion on.
profile=checked

schemathesis_version=4.32.5
schemathesis_place=$cache/schemathesis-$schemathesis_version

mkdir -p "$cache"

say() { printf '== %s\n' "$*"; }
