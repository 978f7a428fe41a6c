#!/usr/bin/env bash
# Sees to it that the tools of the build are there: installs what is missing when it may, and
# otherwise names the command that does. With `run`: what the service alone is built with, without
# the tests.
set -euo pipefail
source "$(dirname "$0")/places.sh"
source scripts/packages.sh

command -v cc >/dev/null || need "a C compiler" build-essential
if ! command -v cargo >/dev/null; then
  echo "cargo is missing. Install Rust: https://rustup.rs" >&2
  exit 1
fi
[ "${1:-}" != run ] || exit 0

command -v flock >/dev/null || need flock util-linux
command -v python3 >/dev/null || need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv" python3-venv
for component in rustfmt clippy; do
  if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
    if command -v rustup >/dev/null; then
      rustup component add "$component"
    else
      echo "cargo ${component/rustfmt/fmt} is missing. Install the Rust component $component." >&2
      exit 1
    fi
  fi
done
