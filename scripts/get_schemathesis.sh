#!/usr/bin/env bash
# Puts schemathesis into the cache, once, whoever asks first.
set -euo pipefail
source "$(dirname "$0")/places.sh"

exec 9>"$schemathesis_place.lock"
flock 9
[ -e "$schemathesis_place/ready" ] && exit 0

say "getting schemathesis $schemathesis_version"
rm -rf "$schemathesis_place"
python3 -m venv "$schemathesis_place"
"$schemathesis_place/bin/pip" install --quiet --disable-pip-version-check \
  "schemathesis==$schemathesis_version"
"$schemathesis_place/bin/schemathesis" --version
touch "$schemathesis_place/ready"
