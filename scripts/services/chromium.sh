#!/usr/bin/env bash
# Chromium, from the system's packages: some tests are about what a web page can do.
set -euo pipefail
source "$(dirname "$0")/../places.sh"
source scripts/packages.sh

command -v chromium >/dev/null || need "a browser" chromium
