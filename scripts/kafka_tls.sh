#!/usr/bin/env bash
# Sees to it that a build with the feature kafka-tls finds OpenSSL.
set -euo pipefail
source "$(dirname "$0")/places.sh"
source scripts/packages.sh

command -v pkg-config >/dev/null || need pkg-config pkg-config
pkg-config --exists openssl || need "OpenSSL's development files" libssl-dev
