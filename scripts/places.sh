# Sourced by the other scripts: where things are kept.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# Tools that are slow to get stay outside the clone, for every clone of this user.
cache=${GUANXI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/guanxi}
target=${CARGO_TARGET_DIR:-target}
# Test builds: as fast as a release, with every assertion on. GUANXI_TEST_PROFILE names another.
profile=${GUANXI_TEST_PROFILE:-checked}

schemathesis_version=4.32.5
schemathesis_place=$cache/schemathesis-$schemathesis_version

# The keys are the versions that the pom and go.mod name: a new version is got anew, beside the old.
kafka_version=$(grep -A1 '<artifactId>kafka_2.13<' tests/services/kafka/pom.xml |
  sed -n 's:.*<version>\(.*\)</version>.*:\1:p')
kafka_place=$cache/kafka-$kafka_version
tidb_version=$(sed -n 's:^require github.com/pingcap/tidb v::p' tests/services/tidb/go.mod)
tidb_place=$cache/tidb-$tidb_version

# Clients of Redis that tests run; tests/services/src/resp_clients.rs has the same keys.
clients=tests/clients-resp
redis_py_place=$cache/redis-py-$(sed -n 's:^redis==::p' $clients/python/requirements.txt)
go_redis_place=$cache/go-redis-$(sed -n 's:.*github.com/redis/go-redis/v9 v::p' $clients/go/go.mod)
jedis_place=$cache/jedis-$(grep -A1 '<artifactId>jedis<' $clients/java/pom.xml |
  sed -n 's:.*<version>\(.*\)</version>.*:\1:p')
ioredis_place=$cache/ioredis-$(sed -n 's:.*"ioredis"\: "\(.*\)".*:\1:p' $clients/node/package.json)

mkdir -p "$cache"

say() { printf '== %s\n' "$*"; }

# What every cargo command of the tests has in common: one set of packages, features and one profile.
# With another, most crates would be built once more.
everything=(--locked --workspace --profile "$profile" --features guanxi/kafka-tls,guanxi-tests/kafka-tls)
build_all() { cargo build "${everything[@]}" --all-targets; }
clippy_all() { cargo clippy "${everything[@]}" --all-targets -- -D warnings; }
# The program without the cluster, which nothing else builds.
clippy_embedded() {
  cargo clippy --locked --profile "$profile" -p guanxi --no-default-features --features embedded \
    --all-targets -- -D warnings
}
