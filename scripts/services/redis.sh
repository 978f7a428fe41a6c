#!/usr/bin/env bash
# Redis, from the system's packages.
set -euo pipefail
source "$(dirname "$0")/../places.sh"
source scripts/packages.sh

command -v redis-server >/dev/null || need "the Redis server" redis-server
