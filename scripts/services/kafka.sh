#!/usr/bin/env bash
# Puts the jars of the Kafka broker into the cache, once, whoever asks first.
set -euo pipefail
source "$(dirname "$0")/../places.sh"
source scripts/packages.sh

# The jars alone start nothing, so Java is asked for even when they are there.
command -v java >/dev/null || need "Java, 17 or later," default-jre-headless
[ -d "$kafka_place" ] && exit 0
command -v mvn >/dev/null || need Maven maven

exec 9>"$kafka_place.lock"
flock 9
[ -d "$kafka_place" ] && exit 0

say "getting Kafka $kafka_version, about 54 MB"
# Only a complete set ever has the final name.
unfinished=$kafka_place.unfinished
rm -rf "$unfinished"
mvn -q -B -Dstyle.color=never -f tests/services/kafka/pom.xml dependency:copy-dependencies \
  -DoutputDirectory="$unfinished" -DincludeScope=runtime
ls "$unfinished/kafka_2.13-$kafka_version.jar" "$unfinished/kafka-tools-$kafka_version.jar" >/dev/null
mv "$unfinished" "$kafka_place"
