#!/usr/bin/env bash
# MariaDB, from the system's packages.
set -euo pipefail
source "$(dirname "$0")/../places.sh"
source scripts/packages.sh

# Debian keeps the server where a plain user's PATH does not look.
PATH=$PATH:/usr/sbin:/usr/local/sbin
command -v mariadbd >/dev/null || need "the MariaDB server" mariadb-server
command -v mariadb-install-db >/dev/null || need "mariadb-install-db" mariadb-server
