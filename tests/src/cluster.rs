//! A cluster for tests: real servers, a database and topics of its own, and as many instances of
//! the binary as the test wants. The servers are shared by the tests of one program.

use std::path::{Path, PathBuf};

use guanxi_services::{fresh_database, lent, shared, topic_name};
use tempfile::TempDir;

use crate::cli::Ran;
use crate::server::{Options, Server, command};

/// Enough to be spread, few enough to be quick.
const PARTITIONS: u16 = 4;

pub struct Cluster {
    /// Holds the file of settings.
    directory: TempDir,
    pub database: String,
    pub topic: String,
}

impl Cluster {
    /// With tables and topics, on the servers that the program shares. `None`, after a loud word,
    /// where the servers' programs are missing and not required.
    pub fn start_or_skip(test: &str) -> Option<Cluster> {
        let cluster = Cluster::prepare_or_skip(test)?;
        cluster.migrate().expect(0);
        Some(cluster)
    }

    /// Where a whole run is about the cluster, missing programs are a failure, and the servers may
    /// be those of all its programs.
    pub(crate) fn start() -> Cluster {
        let cluster = Cluster::on(&lent::mariadb_database(), &lent::kafka_brokers());
        cluster.migrate().expect(0);
        cluster
    }

    /// The same before anything was migrated.
    pub fn prepare_or_skip(test: &str) -> Option<Cluster> {
        let mariadb = shared::mariadb_or_skip(test)?;
        let kafka = shared::kafka_or_skip(test)?;
        Some(Cluster::on(&fresh_database(mariadb), &kafka.brokers()))
    }

    /// On servers of the caller's.
    pub fn on(url: &str, brokers: &str) -> Cluster {
        let database = url.rsplit('/').next().unwrap_or_default().to_owned();
        let directory = TempDir::with_prefix("guanxi-cluster-").expect("a temporary directory");
        let topic = topic_name("records");
        let settings = format!(
            "mode = \"cluster\"\n[store]\nurl = \"{url}\"\nconnections_max = 24\n\
             [log]\nbrokers = \"{brokers}\"\ntopic = \"{topic}\"\n\
             dead_letter_topic = \"{topic}.dead\"\npartitions = {PARTITIONS}\n\
             [audit]\nscrub_rows_per_second = 0\n"
        );
        let cluster = Cluster { directory, database, topic };
        std::fs::write(cluster.config(), settings).expect("the settings can be written");
        cluster
    }

    pub fn config(&self) -> PathBuf {
        self.directory.path().join("cluster.toml")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Adds lines at the end of the settings.
    pub fn configure(&self, lines: &str) {
        let config = self.config();
        let settings = std::fs::read_to_string(&config).expect("the settings are there");
        std::fs::write(config, format!("{settings}{lines}\n")).expect("they can be written");
    }

    pub fn migrate(&self) -> Ran {
        let mut migrate = command();
        migrate.arg("migrate").arg("--config").arg(self.config()).arg("--json");
        migrate.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        Ran::of(migrate.spawn().expect("the binary can be started"))
    }

    /// An instance with every role.
    pub fn instance(&self) -> Server {
        self.instance_with(&[])
    }

    /// An instance with every role that alone asks for the log where nobody answers.
    pub fn without_the_log(&self) -> Server {
        let settings = std::fs::read_to_string(self.config()).expect("the settings are there");
        let elsewhere = settings.lines().map(|line| match line.starts_with("brokers = ") {
            true => "brokers = \"127.0.0.1:9\"\n".to_owned(),
            false => format!("{line}\n"),
        });
        let config = self.directory().join("without_the_log.toml");
        std::fs::write(&config, elsewhere.collect::<String>()).expect("they can be written");
        Server::start_with(Options { config: Some(config), ..Options::default() })
    }

    pub fn instance_with_roles(&self, roles: &str) -> Server {
        self.instance_with(&["--roles", roles])
    }

    pub fn instance_with(&self, arguments: &[&str]) -> Server {
        Server::start_with(self.options(arguments))
    }

    pub fn options(&self, arguments: &[&str]) -> Options {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Options { config: Some(self.config()), arguments, ..Options::default() }
    }
}
