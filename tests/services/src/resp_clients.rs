//! Real clients of Redis, as programs that try one server: `tests/clients-resp` has what they do,
//! `scripts/services/resp_clients.sh` gets what they need.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{Missing, between, cache, existing, on_path, or_skip};

const PYTHON: &str = include_str!("../../clients-resp/python/requirements.txt");
const GO: &str = include_str!("../../clients-resp/go/go.mod");
/// Those of `scripts/services/resp_clients.sh`, so that nothing is built twice.
const GO_FLAGS: &str = "-mod=readonly -modcacherw -buildvcs=false -trimpath";
const JAVA: &str = include_str!("../../clients-resp/java/pom.xml");
const NODE: &str = include_str!("../../clients-resp/node/package.json");

/// The clients that a test may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespClients {
    RedisCli,
    RedisBenchmark,
    RedisPy,
    /// go-redis and rueidis.
    Go,
    /// Jedis and Lettuce.
    Java,
    IoRedis,
}

impl RespClients {
    /// The program, to which a test gives arguments: those in `tests/clients-resp` take the server's
    /// address and the first id that they may use. `None`, after a loud word, where it is missing and
    /// not required.
    pub fn command_or_skip(self, test: &str) -> Option<Command> {
        let command = self.command();
        let missing = command.as_ref().err().cloned();
        or_skip(test, &format!("{self:?}"), missing, || command.expect("it is not missing"))
    }

    fn command(self) -> Result<Command, Missing> {
        match self {
            RespClients::RedisCli => on_path("redis-cli").map(Command::new),
            RespClients::RedisBenchmark => on_path("redis-benchmark").map(Command::new),
            RespClients::RedisPy => {
                let library = place("redis-py-", "redis==", PYTHON, "\n")?;
                let mut command = Command::new(on_path("python3")?);
                command.env("PYTHONPATH", library).arg(sources("python").join("client.py"));
                Ok(command)
            }
            RespClients::Go => {
                let place = place("go-redis-", "github.com/redis/go-redis/v9 v", GO, "\n")?;
                let mut command = Command::new(on_path("go")?);
                command
                    .env("GOMODCACHE", place.join("modules"))
                    .env("GOCACHE", place.join("build"));
                command.env("GOFLAGS", GO_FLAGS);
                command.arg("-C").arg(sources("go")).args(["run", "."]);
                Ok(command)
            }
            RespClients::Java => {
                let begin = "<artifactId>jedis</artifactId>\n      <version>";
                let jars = place("jedis-", begin, JAVA, "</version>")?.join("*");
                let mut command = Command::new(on_path("java")?);
                command.arg("-cp").arg(jars).arg(sources("java").join("Clients.java"));
                Ok(command)
            }
            RespClients::IoRedis => {
                let place = place("ioredis-", "\"ioredis\": \"", NODE, "\"")?;
                let mut command = Command::new(on_path("node")?);
                command.env("NODE_PATH", place.join("node_modules"));
                command.arg(sources("node").join("client.cjs"));
                Ok(command)
            }
        }
    }
}

/// Where the cache has the version that a file names behind `begin`.
fn place(name: &str, begin: &str, versions: &str, end: &str) -> Result<PathBuf, Missing> {
    let version = between(versions, begin, end).expect("the file names the version");
    existing(cache().join(format!("{name}{version}")))
}

fn sources(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients-resp").join(language)
}
