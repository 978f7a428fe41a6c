# The commands of the project. Each sets up what it needs by itself.

.PHONY: run build cluster test check bench bench-quick bench-growth bench-inside setup services cluster-suite clean

# What `run` builds: `embedded`, the service on one machine, or `cluster`, which is the whole program.
MODE ?= embedded
features = $(if $(filter cluster,$(MODE)),,--no-default-features --features embedded)

# Starts the service on 127.0.0.1:7420, data in ./guanxi-data.
run:
	@scripts/setup.sh run
	cargo run --locked --profile quick -p guanxi $(features) -- serve

# Makes target/quick/guanxi, the whole program: also for clusters, moves and imports from databases.
build:
	@scripts/setup.sh run
	cargo build --locked --profile quick -p guanxi

# A cluster to try: MariaDB, Kafka, Redis and two instances on loopback, kept in ./guanxi-cluster.
cluster: setup
	scripts/cluster.sh

# Every test: format, lints, unit tests and simulator, black box, schemathesis, power loss,
# and what runs against real MariaDB, TiDB, Kafka and Redis.
test:
	scripts/test.sh

# Format, lints, and what cargo-deny says of the dependencies.
check:
	scripts/check.sh

# Guanxi beside Redis and MariaDB in every work; writes docs/benchmarks.md. An hour, 25 GB of disk.
bench: setup
	scripts/bench.sh

# The same within two minutes, into a folder of its own: to see that all of it works.
bench-quick: setup
	GUANXI_BENCH_DOCS=$${GUANXI_BENCH_DOCS:-target/bench} scripts/bench.sh quick

# Guanxi at 1, 5 and 25 million edges; writes its part of docs/benchmarks.md.
bench-growth: setup
	scripts/bench.sh growth

# The parts: durable puts and start-up in one process, the cluster against statements by hand.
bench-inside: setup
	scripts/bench.sh inside

setup:
	@scripts/setup.sh

# The real servers that tests start: MariaDB, Redis, Kafka, TiDB (built once, in minutes).
services:
	@scripts/services.sh

# A part of make test: the black-box suites of both deployments, against a cluster.
cluster-suite: setup
	scripts/cluster_suite.sh

clean:
	cargo clean
