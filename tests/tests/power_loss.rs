//! The power-loss test. Runs the real binary under a recorder of its file calls, rebuilds its
//! directory as it could stand after a cut at many recorded points, starts the binary on each image
//! and checks that every acknowledged write is there.
//!
//! The binary under test must be built with `--cfg rustix_use_libc`, as `.cargo/config.toml` says:
//! without it renames go past the recorder, and the test says so.
//!
//! | variable | means |
//! |---|---|
//! | `GUANXI_BIN` | the binary under test |
//! | `GUANXI_POWER_LOSS_IMAGES` | how many cuts, 40 unless given; a soak takes thousands |
//! | `GUANXI_POWER_LOSS_SEED` | the seed of workload, cuts and images |
//! | `GUANXI_POWER_LOSS_OPERATIONS` | operations of each client in each of the three phases |
//! | `GUANXI_POWER_LOSS_TRACE` | a kept trace to cut, instead of recording a new one |
//! | `GUANXI_POWER_LOSS_CUT` | this cut alone; a failure prints the three to replay it with |

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use fastrand::Rng;
use guanxi_tests::powerloss::image::{self, Cut};
use guanxi_tests::powerloss::recorder::{self, Recording};
use guanxi_tests::powerloss::replay::State;
use guanxi_tests::powerloss::server::Launch;
use guanxi_tests::powerloss::trace::{Record, Trace};
use guanxi_tests::powerloss::verdict::Expectation;
use guanxi_tests::powerloss::workload::{self, Mark, Workload};

const IMAGES: usize = 40;
const SEED: u64 = 20_260;
const OPERATIONS_PER_CLIENT: u64 = 250;
/// Every so many images, the recovery is recorded and cut as well.
const SECOND_CUT_EVERY: usize = 4;
/// Small enough that the workload flushes memtables and rotates journals.
const SETTINGS: [(&str, &str); 1] = [("GUANXI_STORE_MEMTABLE_BYTES", "262144")];

#[test]
fn acknowledged_writes_survive_power_loss() {
    let directory =
        tempfile::Builder::new().prefix("guanxi-power-loss-").tempdir().expect("a directory");
    let test = Test::new(directory.path());
    match test.run() {
        Ok(summary) => println!("{summary}"),
        Err(error) => panic!("{error}\n    kept: {}", directory.keep().display()),
    }
}

struct Test {
    directory: PathBuf,
    library: PathBuf,
    launch: Launch,
    workload: Workload,
    seed: u64,
}

impl Test {
    fn new(directory: &Path) -> Test {
        let seed = setting("GUANXI_POWER_LOSS_SEED").unwrap_or(SEED);
        Test {
            directory: directory.to_owned(),
            library: recorder::build(directory).expect("the recorder compiles"),
            launch: Launch {
                binary: guanxi_tests::binary(),
                settings: SETTINGS
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .to_vec(),
                log: directory.join("server.log"),
            },
            workload: Workload {
                clients: 4,
                sources_per_client: 6,
                targets: 24,
                operations_per_client: setting("GUANXI_POWER_LOSS_OPERATIONS")
                    .unwrap_or(OPERATIONS_PER_CLIENT),
                seed,
            },
            seed,
        }
    }

    fn run(&self) -> Result<String, String> {
        let began = Instant::now();
        let path = match setting("GUANXI_POWER_LOSS_TRACE") {
            Some(path) => path,
            None => self.record()?,
        };
        let recorded = began.elapsed();
        let trace = Trace::read(&path).map_err(|error| error.to_string())?;
        let cuts = match setting("GUANXI_POWER_LOSS_CUT") {
            Some(cut) => vec![cut],
            None => self.choose_cuts(&trace)?,
        };

        let mut state = State::default();
        let mut replayed = 0;
        let mut certain = 0;
        for (number, cut) in cuts.iter().copied().enumerate() {
            state.advance(&trace, replayed, cut).map_err(|error| error.to_string())?;
            replayed = cut;
            let expectation = Expectation::at(&trace, cut, self.workload)?;
            certain += expectation.certain();
            let second = number % SECOND_CUT_EVERY == 0;
            self.check_image(&state, cut, &expectation, second).map_err(|error| {
                format!(
                    "after a cut before record {cut} of {}: {error}\n    replay with GUANXI_POWER_LOSS_SEED={} \
                     GUANXI_POWER_LOSS_TRACE={} GUANXI_POWER_LOSS_CUT={cut}",
                    trace.length(),
                    self.seed,
                    path.display()
                )
            })?;
        }
        Ok(format!(
            "{} images of {}, {certain} acknowledged edges found again; recorded in {recorded:.1?}, all in {:.1?}",
            cuts.len(),
            describe(&trace),
            began.elapsed()
        ))
    }

    /// Three runs on one directory: stopped cleanly, killed, stopped cleanly.
    fn record(&self) -> Result<PathBuf, String> {
        let root = self.directory.join("recorded");
        let path = self.directory.join("trace");
        std::fs::create_dir(&root).map_err(|error| error.to_string())?;
        let recording =
            Recording::start(&self.library, &root, &path).map_err(|error| error.to_string())?;
        for phase in 0..3 {
            let mut server = self.launch.start(&data_directory(&root), Some(&recording))?;
            workload::mark(&recording, &Mark::Ready)?;
            if phase == 1 {
                self.workload.run_into_kill(phase, &mut server, &recording)?;
            } else {
                self.workload.run(phase, &server, &recording)?;
                server.stop()?;
            }
        }
        check_whole(&path, &root)?;
        Ok(path)
    }

    /// In rising order: some before the server was first ready, the others anywhere after, half of
    /// them beside a call that makes something durable or changes a name.
    fn choose_cuts(&self, trace: &Trace) -> Result<Vec<usize>, String> {
        let images = setting("GUANXI_POWER_LOSS_IMAGES").unwrap_or(IMAGES);
        let mut rng = Rng::with_seed(self.seed);
        let (ready, _) = trace.marks().next().ok_or("the trace has no mark")?;
        let mut cuts: Vec<usize> = (0..images)
            .map(|number| {
                if number % 8 == 0 {
                    return rng.usize(trace.settled()..=ready);
                }
                let cut = rng.usize(ready..=trace.length());
                if rng.bool() {
                    return cut;
                }
                let turn =
                    (cut..trace.length()).find(|index| is_turning_point(&trace.record(*index)));
                turn.map_or(cut, |index| index + rng.usize(..=1))
            })
            .collect();
        cuts.sort_unstable();
        Ok(cuts)
    }

    /// Starts the binary on an image and judges it; `second` also cuts the recovery.
    fn check_image(
        &self,
        state: &State<'_>,
        cut: usize,
        expectation: &Expectation,
        second: bool,
    ) -> Result<(), String> {
        let mut rng = Rng::with_seed(self.seed ^ (cut as u64) << 20);
        let root = self.directory.join("image");
        image::write(state, Cut::Seeded(rng.u64(..)), &root).map_err(|error| error.to_string())?;
        if !second {
            let server = self.launch.start(&data_directory(&root), None)?;
            expectation.judge(&server)?;
            server.stop()?;
            return remove(&root);
        }

        let path = self.directory.join("recovery");
        let recording =
            Recording::start(&self.library, &root, &path).map_err(|error| error.to_string())?;
        let server = self.launch.start(&data_directory(&root), Some(&recording))?;
        let view = expectation.judge(&server)?;
        workload::mark(&recording, &Mark::Shown)?;
        server.stop()?;
        check_whole(&path, &root)?;

        let trace = Trace::read(&path).map_err(|error| error.to_string())?;
        let (shown, _) = trace.marks().next().ok_or("the recovery has no mark")?;
        let cut = rng.usize(trace.settled()..=trace.length());
        let state = State::after(&trace, cut).map_err(|error| error.to_string())?;
        let root_after = self.directory.join("image-after-recovery");
        image::write(&state, Cut::Seeded(rng.u64(..)), &root_after)
            .map_err(|error| error.to_string())?;
        let exactly = Expectation::exactly(&view, self.workload);
        let expectation = if cut > shown { &exactly } else { expectation };
        let judged = self.launch.start(&data_directory(&root_after), None).and_then(|server| {
            expectation.judge(&server)?;
            server.stop()
        });
        judged.map_err(|error| {
            format!(
                "after a second cut, before record {cut} of {} of the recovery: {error}",
                trace.length()
            )
        })?;
        remove(&root)?;
        remove(&root_after)?;
        std::fs::remove_file(&path).map_err(|error| error.to_string())
    }
}

fn data_directory(root: &Path) -> PathBuf {
    root.join("data")
}

fn check_whole(trace: &Path, root: &Path) -> Result<(), String> {
    let trace = Trace::read(trace).map_err(|error| error.to_string())?;
    let state = State::after(&trace, trace.length()).map_err(|error| error.to_string())?;
    image::check_whole(&state, root).map_err(|error| error.to_string())
}

fn is_turning_point(record: &Record<'_>) -> bool {
    !matches!(record, Record::Write { .. } | Record::SyncBegin { .. } | Record::Mark { .. })
}

fn describe(trace: &Trace) -> String {
    let count = |wanted: fn(&Record<'_>) -> bool| trace.records().filter(wanted).count();
    format!(
        "{} records ({} writes, {} syncs, {} files made, {} renames, {} removals)",
        trace.length(),
        count(|record| matches!(record, Record::Write { .. })),
        count(|record| matches!(record, Record::SyncEnd { .. })),
        count(|record| matches!(record, Record::Create { .. })),
        count(|record| matches!(record, Record::Rename { .. })),
        count(|record| matches!(record, Record::Remove { .. })),
    )
}

fn remove(directory: &Path) -> Result<(), String> {
    std::fs::remove_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is not a value for it")))
}
