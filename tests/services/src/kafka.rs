//! A Kafka broker: one node that is broker and controller, and that makes no topic by itself.

mod wire;

use std::fmt::Write;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::place::{Place, Port};
use crate::process::{Launch, Process};
use crate::programs::{Missing, kafka_jars, on_path, or_skip};

/// Any id of the right form: no two of these clusters ever meet.
const CLUSTER_ID: &str = "Z3VhbnhpLXRlc3RzLWthZg";
/// No run here is long enough to pay for the better one, which keeps a core busy for minutes.
const QUICK_COMPILER: &str = "-XX:TieredStopAtLevel=1";
const SETTINGS: &str = include_str!("../kafka/server.properties");

pub struct Kafka {
    process: Process,
    port: Port,
    /// The controller's, of whichever broker that is.
    controller: u16,
    _controller_port: Option<Port>,
    secured: Option<Port>,
}

/// Where a broker listens beside its plain port.
#[derive(Default)]
struct Listens {
    /// It is the controller as well.
    controls: bool,
    secured: Option<u16>,
}

impl Kafka {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further settings of the broker, as `("log.retention.ms", "5000")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let controller_port = Port::free();
        let controller = controller_port.number();
        let listens = Listens { controls: true, ..Listens::default() };
        let (process, port) = launch(controller, &listens, settings);
        let _controller_port = Some(controller_port);
        Self { process, port, controller, _controller_port, secured: None }
    }

    /// With a second port (`secured_brokers`) that speaks over TLS, with the key and certificate of
    /// this PEM file, and wants a login of the user: by PLAIN, or by SCRAM once
    /// `kafka.admin.ConfigCommand` has been told of it.
    pub fn start_secured_or_skip(
        test: &str,
        pem: &Path,
        user: &str,
        password: &str,
    ) -> Option<Self> {
        or_skip(test, "Kafka", Self::missing(), || Self::start_secured(pem, user, password))
    }

    fn start_secured(pem: &Path, user: &str, password: &str) -> Self {
        let (controller_port, secured) = (Port::free(), Port::free());
        let controller = controller_port.number();
        let plain = format!(
            "org.apache.kafka.common.security.plain.PlainLoginModule required \
             user_{user}=\"{password}\";"
        );
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let settings = [
            (
                "listener.security.protocol.map",
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
            ),
            ("ssl.keystore.type", "PEM"),
            ("ssl.keystore.location", &pem.display().to_string()),
            ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"),
            ("listener.name.secured.plain.sasl.jaas.config", &plain),
            ("listener.name.secured.scram-sha-256.sasl.jaas.config", scram),
            ("listener.name.secured.scram-sha-512.sasl.jaas.config", scram),
        ];
        let listens = Listens { controls: true, secured: Some(secured.number()) };
        let (process, port) = launch(controller, &listens, &settings);
        let _controller_port = Some(controller_port);
        Self { process, port, controller, _controller_port, secured: Some(secured) }
    }

    /// For `bootstrap.servers` of clients that log in over TLS.
    pub fn secured_brokers(&self) -> String {
        let port = self.secured.as_ref().expect("it was started with a secured port");
        format!("127.0.0.1:{}", port.number())
    }

    /// A further broker of the same cluster, with another number than 1.
    pub fn start_beside(&self, node: u32) -> Self {
        let controller = self.controller;
        let listens = Listens::default();
        let (process, port) = launch(controller, &listens, &[("node.id", &node.to_string())]);
        Self { process, port, controller, _controller_port: None, secured: None }
    }

    /// `None`, after a loud word, where the programs are missing and not required.
    pub fn start_or_skip(test: &str) -> Option<Self> {
        or_skip(test, "Kafka", Self::missing(), Self::start)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// For `bootstrap.servers`.
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Creates a topic and waits until it has a leader for each of its partitions.
    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: u16) {
        self.create_topic_with(name, partitions, &[]);
    }

    /// With settings of the topic, as `("retention.ms", "5000")`.
    #[track_caller]
    pub fn create_topic_with(&self, name: &str, partitions: u16, settings: &[(&str, &str)]) {
        wire::create_topic(self.port(), name, partitions, settings)
            .unwrap_or_else(|error| panic!("topic {name}: {error}\n{}", self.log_tail()));
    }

    /// One of Kafka's own programs by its class, as `org.apache.kafka.tools.TopicCommand`; each
    /// start of one takes seconds.
    pub fn tool(&self, class: &str) -> Command {
        let mut command = Command::new(java());
        command.args([QUICK_COMPILER, "-cp", &classes(), class]);
        command.args(["--bootstrap-server", &self.brokers()]);
        command
    }

    pub(crate) fn missing() -> Option<Missing> {
        on_path("java").and_then(|_| kafka_jars()).err()
    }
}

impl Deref for Kafka {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A topic's name that no other test of this process has.
pub fn topic_name(purpose: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{purpose}-{}-{number}", std::process::id())
}

/// Starts a broker of the cluster whose controller has this port, and is this broker or another.
fn launch(controller: u16, listens: &Listens, settings: &[(&str, &str)]) -> (Process, Port) {
    let java = java();
    let classes = classes();
    let place = Place::new("kafka");
    let port = Port::free();
    let file = place.path().join("server.properties");
    let content = properties(&place, &port, controller, listens, settings);
    fs::write(&file, content).expect("the broker's settings can be written");
    Launch::new(&java)
        .arguments([QUICK_COMPILER, "-cp", &classes])
        .arguments(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
        .argument(&file)
        .run(&place);
    let number = port.number();
    let launch = Launch::new(&java)
        .arguments([
            QUICK_COMPILER,
            "-Xms128m",
            "-Xmx384m",
            "-Dlog4j2.level=INFO",
            "-cp",
            &classes,
            "kafka.Kafka",
        ])
        .argument(&file);
    let process = Process::start("Kafka", place, launch, move || wire::ask_if_ready(number));
    (process, port)
}

fn properties(
    place: &Place,
    port: &Port,
    controller: u16,
    listens: &Listens,
    settings: &[(&str, &str)],
) -> String {
    let port = port.number();
    let directory = place.path().join("logs");
    let mut brokers = format!("PLAINTEXT://127.0.0.1:{port}");
    if let Some(secured) = listens.secured {
        let _ = write!(brokers, ",SECURED://127.0.0.1:{secured}");
    }
    let (roles, controls) = match listens.controls {
        true => ("broker,controller", format!(",CONTROLLER://127.0.0.1:{controller}")),
        false => ("broker", String::new()),
    };
    let mut content = format!(
        "{SETTINGS}\n\
         process.roles={roles}\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners={brokers}{controls}\n\
         advertised.listeners={brokers}\n\
         log.dirs={}\n",
        directory.display()
    );
    // The last of two lines for one setting holds.
    for (name, value) in settings {
        let _ = writeln!(content, "{name}={value}");
    }
    content
}

fn java() -> PathBuf {
    on_path("java").unwrap_or_else(|missing| panic!("{missing}; scripts/services.sh gets it"))
}

fn classes() -> String {
    let jars =
        kafka_jars().unwrap_or_else(|missing| panic!("{missing}; scripts/services.sh gets it"));
    format!("{}/*", jars.display())
}
