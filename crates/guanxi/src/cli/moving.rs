//! `guanxi move`: takes a running embedded service into a cluster while it serves. The tables keep
//! how far it is, so it may be stopped at any moment and run again.

mod presence;
mod service;
mod switch;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_cluster::instance::ClusterError;
use guanxi_cluster::kafka::TopicError;
use guanxi_core::audit::Findings;
use guanxi_model::Position;
use guanxi_moving::{self as engine, MoveError, MoveStanding, SnapshotFile};
use serde_json::json;

use self::presence::Presence;
use self::service::{Service, ServiceStanding};
use super::CommandContext;
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::Style;
use super::progress::ProgressLine;
use crate::config::{self, Config, ConfigError, Mode, without_passwords};
use crate::failure::Failure;
use crate::serve;

/// How long what is under way may take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(30);
const LAST_WORDS: &str = "the move is not done; run the same command again, it goes on";
/// The snapshot in its directory.
const SNAPSHOT: &str = "snapshot.gxb";
/// A round of following that took less has left little: writes may pause for the rest.
const ROUND_SHORT: Duration = Duration::from_millis(700);
/// How long the service may write faster than the database takes it.
const TAIL_TIME_MAX: Duration = Duration::from_secs(6 * 60 * 60);

const EXAMPLES: &str = "\
Examples:
  guanxi move --to cluster.toml
  guanxi move --to cluster.toml --server http://10.0.0.1:7420 --now-at http://cluster:7420

The service goes on meanwhile; its writes pause once, for 5 seconds at most, and are then refused \
there for good. Instances of the cluster may be started while it runs: they wait, and serve when \
all is there. Stop the command at any moment and run it again: it goes on. Before the switch nothing has \
changed for the service.";

/// Takes a running embedded service into a cluster while it serves.
///
/// Loads a snapshot into the cluster's database, follows the service's log, audits what is there,
/// lets the service's writes pause while the last of them are carried over, and audits again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MoveCommand {
    /// The cluster's settings. Its database and topic must be new.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Where callers find the cluster; the service tells it to those whose writes it refuses.
    #[arg(long, value_name = "URL", value_parser = address)]
    now_at: Option<String>,
    /// Where the snapshot is kept meanwhile: as much room as a backup takes. By default a directory
    /// beside the settings.
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

fn address(text: &str) -> Result<String, String> {
    match guanxi_api::moving::is_address(text) {
        true => Ok(text.to_owned()),
        false => Err("it is an address such as http://cluster:7420".into()),
    }
}

impl MoveCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let settings = serve::cluster::settings(&settings_of(&self.to)?)?;
        let interrupt = Interrupt::catch(GRACE, EXIT_INTERRUPTED, LAST_WORDS)?;
        let work_dir = self.work_dir.unwrap_or_else(|| self.to.with_added_extension("move"));
        let tables = engine::ClusterMove::open(&settings)
            .map_err(|error| cannot_open(error, &settings.kafka.brokers))?;
        let figures = Figures { begun: Instant::now(), ..Figures::default() };
        let mut mover =
            Mover { context, tables, run: 0, work_dir, now_at: self.now_at, interrupt, figures };
        mover.run()
    }
}

/// The cluster's settings.
fn settings_of(to: &Path) -> Result<Config, Failure> {
    let loaded = config::load(Some(to), std::env::vars_os()).map_err(|error| match error {
        ConfigError::Unreadable { path, source } => {
            let message = format!("cannot read {}: {source}", path.display());
            Failure::usage(message).next("name the file of the cluster's settings with --to")
        }
        ConfigError::Wrong { origin, message } => {
            // A setting, whose file is not said yet, or the file itself.
            let file = to.display().to_string();
            let message = match origin == file {
                true => format!("{file}: {message}"),
                false => format!("{file}: {origin}: {message}"),
            };
            Failure::usage(message)
                .next("correct it, or name another file of the cluster's settings with --to")
        }
    })?;
    if loaded.config.mode != Mode::Cluster {
        let message = format!("{} is of an embedded service, and not of a cluster", to.display());
        return Err(Failure::usage(message)
            .next("set mode = \"cluster\" in it, or name the cluster's settings with --to"));
    }
    Ok(loaded.config)
}

/// What is told at the end.
#[derive(Debug)]
struct Figures {
    begun: Instant,
    rows: u64,
    load: Duration,
    records: u64,
    tries: u32,
    /// The longest, of all tries.
    pause: Duration,
}

impl Default for Figures {
    fn default() -> Figures {
        let (load, pause) = (Duration::ZERO, Duration::ZERO);
        Figures { begun: Instant::now(), rows: 0, load, records: 0, tries: 0, pause }
    }
}

struct Mover<'a> {
    context: &'a mut CommandContext,
    tables: engine::ClusterMove,
    /// What the service calls this run; 0 before it has begun.
    run: u64,
    work_dir: PathBuf,
    now_at: Option<String>,
    interrupt: Interrupt,
    figures: Figures,
}

impl Mover<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let service = self.service();
        let state = service.state();
        if let MoveStanding::Done(applied) = self.tables.standing() {
            return self.is_done(applied.position, state);
        }
        match state? {
            ServiceStanding::Moved { id, position, now_at } => {
                let ours = id == self.tables.id() && position == self.tables.applied().position;
                if !ours {
                    return Err(self.moved_elsewhere(now_at.as_deref()));
                }
                self.tables.raise_floor().map_err(failure)?;
                self.tables.finish().map_err(failure)?;
            }
            ServiceStanding::Here => {
                service.refuse_standby()?;
                self.tables.take_tables().map_err(failure)?;
                let begun = self.service().begin();
                if begun.is_err() {
                    self.tables.give_back().map_err(failure)?;
                }
                self.run = begun?;
                let presence =
                    Presence::start(self.context.client.server(), self.tables.id(), self.run)?;
                let moved = self.carry_over();
                drop(presence);
                if let Err(failure) = moved {
                    // What a conflict is about is another's by now.
                    if failure.code.as_deref() != Some("conflict") {
                        let _silent_soon = self.service().let_go();
                    }
                    return Err(failure);
                }
            }
        }
        self.forget_snapshot();
        let findings = self.audit("auditing the cluster")?;
        refuse_drift(&findings, "the cluster serves; `guanxi audit --repair` mends its tallies")?;
        self.report(&findings)
    }

    /// From the first row to the service's word that it has moved.
    fn carry_over(&mut self) -> Result<(), Failure> {
        self.load()?;
        self.tail()?;
        // Before the switch: what is wrong now has changed nothing for anybody.
        let findings = self.audit("auditing")?;
        refuse_drift(&findings, "nothing was switched: the service goes on as before")?;
        self.switch()
    }

    fn service(&self) -> Service<'_> {
        Service::new(&self.context.client, self.tables.id(), self.run)
    }

    fn snapshot_path(&self) -> PathBuf {
        self.work_dir.join(SNAPSHOT)
    }

    /// Brings the snapshot's rows into the tables, as far as they are not there.
    fn load(&mut self) -> Result<(), Failure> {
        match self.tables.standing() {
            MoveStanding::Following(_) | MoveStanding::Done(_) => Ok(()),
            MoveStanding::Nothing => {
                let snapshot = self.take_snapshot()?;
                self.load_from_start(&snapshot)
            }
            MoveStanding::Loading { created_ms, position, .. } => match self.kept_snapshot()? {
                Some(snapshot) if snapshot.is_of(created_ms, position) => self.load_rest(&snapshot),
                _ => {
                    let snapshot = self.take_snapshot()?;
                    self.load_from_start(&snapshot)
                }
            },
        }
    }

    fn load_from_start(&mut self, snapshot: &SnapshotFile) -> Result<(), Failure> {
        self.tables.begin(snapshot).map_err(failure)?;
        self.load_rest(snapshot)
    }

    fn load_rest(&mut self, snapshot: &SnapshotFile) -> Result<(), Failure> {
        let progress =
            ProgressLine::new(&self.context.output, "loading rows", Some(snapshot.rows()));
        let (mut shown, begun) = (0, Instant::now());
        let interrupt = self.interrupt.clone();
        let loaded = self.tables.load(snapshot, &mut |rows| {
            progress.advance(rows.saturating_sub(shown));
            shown = shown.max(rows);
            go_on(&interrupt)
        });
        drop(progress);
        loaded.map_err(failure)?;
        self.figures.rows = snapshot.rows();
        self.figures.load = begun.elapsed();
        Ok(())
    }

    /// The snapshot that an earlier run has left, if it is whole.
    fn kept_snapshot(&self) -> Result<Option<SnapshotFile>, Failure> {
        match self.read_snapshot() {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(MoveError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(MoveError::Archive(_)) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }

    fn take_snapshot(&self) -> Result<SnapshotFile, Failure> {
        let path = self.snapshot_path();
        let cannot = |action: &str, path: &Path, error: io::Error| {
            Failure::failed(format!("cannot {action} {}: {error}", path.display()))
                .next("name a directory that can be written to with --work-dir")
        };
        fs::create_dir_all(&self.work_dir)
            .map_err(|error| cannot("make", &self.work_dir, error))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot("remove", &path, error));
            }
            _ => {}
        }
        let progress = ProgressLine::new(&self.context.output, "copying bytes", None);
        self.service().snapshot(&path, &self.interrupt, &progress)?;
        drop(progress);
        self.read_snapshot().map_err(failure)
    }

    fn read_snapshot(&self) -> Result<SnapshotFile, MoveError> {
        let path = self.snapshot_path();
        let total = fs::metadata(&path).map_or(0, |about| about.len());
        let progress = ProgressLine::new(&self.context.output, "checking bytes", Some(total));
        let mut shown = 0;
        SnapshotFile::open(&path, &mut |bytes| {
            progress.advance(bytes - shown);
            shown = bytes;
            go_on(&self.interrupt)
        })
    }

    /// It is as large as a backup, and of no more use.
    fn forget_snapshot(&self) {
        let _kept = fs::remove_file(self.snapshot_path());
        let _not_empty = fs::remove_dir(&self.work_dir);
    }

    /// Follows the service's log until what is left takes less than a moment.
    fn tail(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + TAIL_TIME_MAX;
        let mut begun_anew = false;
        // A service that was started anew meanwhile knows of the move again.
        self.service().go_on()?;
        while Instant::now() < until {
            let round = Instant::now();
            match self.follow(None) {
                Ok(()) if round.elapsed() < ROUND_SHORT => return Ok(()),
                Ok(()) => {}
                Err(failure) if failure.code.as_deref() == Some("position_expired") => {
                    // Once: a log that is trimmed faster than it can be followed stays so.
                    if begun_anew {
                        return Err(failure);
                    }
                    begun_anew = true;
                    self.begin_anew(failure)?;
                }
                Err(failure) => return Err(failure),
            }
        }
        let hours = TAIL_TIME_MAX.as_secs() / 3_600;
        let message = format!(
            "after {hours} h the service still writes faster than the database takes it; the \
             service goes on as before"
        );
        Err(Failure::failed(message)
            .next("give the database more power, or write less for a while, and run it again"))
    }

    /// The service's log no longer has what follows: a new snapshot of the same service, if it is
    /// the same.
    fn begin_anew(&mut self, expired: Failure) -> Result<(), Failure> {
        let applied = self.tables.applied();
        let snapshot = self.take_snapshot()?;
        if !snapshot.lineage().accepts(applied.epoch, applied.position) {
            let server = self.context.client.server();
            let message = format!("{server} has another history than what was moved so far");
            return Err(Failure::found(message).next(format!(
                "name the service that the move began with; it said: {}",
                expired.message()
            )));
        }
        self.load_from_start(&snapshot)
    }

    /// Takes over what the service has now, or what it can until then.
    fn follow(&mut self, until: Option<Instant>) -> Result<(), Failure> {
        let before = self.tables.applied();
        let input = self.service().tail(before.epoch, before.position)?;
        let progress = ProgressLine::new(&self.context.output, "following records", None);
        let mut shown = before.position.0;
        let interrupt = self.interrupt.clone();
        let followed = self.tables.follow(input, &mut |position| {
            progress.advance(position.saturating_sub(shown));
            shown = shown.max(position);
            match until.is_some_and(|until| Instant::now() >= until) {
                true => ControlFlow::Break(()),
                false => go_on(&interrupt),
            }
        });
        drop(progress);
        self.figures.records += self.tables.applied().position.0 - before.position.0;
        match followed {
            Err(MoveError::Stopped) if !self.interrupt.is_set() => Ok(()),
            followed => followed.map(drop).map_err(failure),
        }
    }

    fn moved_elsewhere(&self, now_at: Option<&str>) -> Failure {
        let server = self.context.client.server();
        let now_at = now_at.unwrap_or("another cluster");
        Failure::found(format!("{server} has moved already, to {now_at}, and takes no more writes"))
            .next("name another service with --server, or the cluster that it went to with --to")
    }

    fn audit(&self, what: &str) -> Result<Findings, Failure> {
        let progress = ProgressLine::new(&self.context.output, what, None);
        let mut shown = 0;
        let findings = self.tables.audit(&mut |rows| {
            progress.advance(rows - shown);
            shown = rows;
            go_on(&self.interrupt)
        });
        findings.map_err(failure)
    }

    /// The cluster has a move that is done: the one of this service, or another's.
    fn is_done(
        &mut self,
        position: Position,
        state: Result<ServiceStanding, Failure>,
    ) -> Result<(), Failure> {
        let server = self.context.client.server();
        match state {
            Ok(ServiceStanding::Moved { id, .. }) if id == self.tables.id() => self.done_already(position),
            Ok(_) => Err(Failure::found(format!(
                "nothing of {server} was moved: another service has moved into this cluster, or this \
                 one before it came back"
            ))
            .next("name the settings of a cluster of its own with --to")),
            Err(failure) => Err(failure.next(format!(
                "a move into this cluster is done, up to position {}; whether it was of {server} is \
                 not known while that does not answer",
                position.0
            ))),
        }
    }

    fn done_already(&mut self, position: Position) -> Result<(), Failure> {
        self.forget_snapshot();
        let output = &mut self.context.output;
        if output.json() {
            return output
                .value(&json!({ "moved": true, "already": true, "position": position.0 }));
        }
        output.line(&format!("the move is done already, up to position {}", position.0))
    }

    fn report(&mut self, findings: &Findings) -> Result<(), Failure> {
        let Figures { begun, rows, load, records, tries, pause } = self.figures;
        let position = self.tables.applied().position.0;
        let ms = |time: Duration| time.as_millis() as u64;
        let took = begun.elapsed();
        let output = &mut self.context.output;
        if output.json() {
            return output.value(&json!({
                "moved": true,
                "already": false,
                "position": position,
                "edges": findings.edges(),
                "tallies": findings.tallies(),
                "drift": findings.drift(),
                "rows_loaded": rows,
                "load_ms": ms(load),
                "records_followed": records,
                "switch_tries": tries,
                "pause_ms": ms(pause),
                "took_ms": ms(took),
            }));
        }
        let done = output.paint(Style::Good, "moved: the cluster has everything").into_owned();
        output.line(&done)?;
        output.fields(&[
            ("edges", findings.edges().to_string()),
            ("tallies compared", findings.tallies().to_string()),
            ("drift", findings.drift().to_string()),
            ("records followed", records.to_string()),
            ("up to position", position.to_string()),
            ("writes paused", format!("{} ms", ms(pause))),
            ("took", format!("{:.1} s", took.as_secs_f64())),
        ])
    }
}

fn go_on(interrupt: &Interrupt) -> ControlFlow<()> {
    match interrupt.is_set() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn refuse_drift(findings: &Findings, so: &str) -> Result<(), Failure> {
    if findings.drift() == 0 {
        return Ok(());
    }
    let examples = findings.examples.join("\n        ");
    let message = format!("{} numbers or rows do not agree with the edges", findings.drift());
    Err(Failure::found(message).next(format!("{so}\n        {examples}")))
}

fn cannot_open(error: MoveError, brokers: &str) -> Failure {
    match error {
        MoveError::Cluster(ClusterError::Topics(TopicError::Log(error))) => {
            let text = without_passwords(&error.to_string());
            Failure::failed(format!("the log at {brokers} cannot be used: {text}")).next(
                "check log.brokers in the cluster's settings, the network, and that it runs; then \
                 run the same command again",
            )
        }
        error => failure(error),
    }
}

fn failure(error: MoveError) -> Failure {
    let text = without_passwords(&error.to_string());
    match error {
        MoveError::NotEmpty(_)
        | MoveError::TopicUsed(_)
        | MoveError::Instances
        | MoveError::Running
        | MoveError::Unfit(_) => Failure::found(text),
        MoveError::Stopped => Failure::failed("stopped by Ctrl-C: the move is not done")
            .next("run the same command again, it goes on"),
        _ => Failure::failed(text)
            .next("when that is mended, run the same command again: it goes on where it was"),
    }
}
