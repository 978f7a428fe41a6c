//! A Kafka broker: one node that is broker and controller, and that makes no topic by itself.

mod wire;

use std::fmt::Write;
use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
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
    _controller_port: Port,
}

impl Kafka {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further settings of the broker, as `("log.retention.ms", "5000")`.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let java = java();
        let classes = classes();
        let place = Place::new("kafka");
        let port = Port::free();
        let controller_port = Port::free();
        let file = place.path().join("server.properties");
        let content = properties(&place, &port, &controller_port, settings);
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
        Self { process, port, _controller_port: controller_port }
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

fn properties(place: &Place, port: &Port, controller: &Port, settings: &[(&str, &str)]) -> String {
    let (port, controller) = (port.number(), controller.number());
    let directory = place.path().join("logs");
    let mut content = format!(
        "{SETTINGS}\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
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
