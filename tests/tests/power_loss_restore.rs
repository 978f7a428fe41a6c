//! The power goes while `guanxi restore` runs, or right after it: its file calls are recorded, the
//! directory is rebuilt as it could stand after a cut at many recorded points, and each is either
//! refused as unfinished, and restored by the same command again, or whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fastrand::Rng;
use guanxi_tests::powerloss::image::{self, Cut};
use guanxi_tests::powerloss::recorder::{self, Recording};
use guanxi_tests::powerloss::replay::State;
use guanxi_tests::powerloss::trace::Trace;
use guanxi_tests::{Cli, Client, Server, binary, node_run, put_all};
use tempfile::TempDir;

const IMAGES: usize = 20;
/// Of these, so many are of the last calls, where an unfinished directory becomes a whole one.
const LATE_IMAGES: usize = 8;
const LATE_CALLS: usize = 24;
const SEED: u64 = 20_261;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path is text")
}

/// Every edge, as an export has it.
fn everything(client: &Client) -> String {
    client.get("/v1/admin/export").text
}

struct Test {
    folder: TempDir,
    archive: PathBuf,
    expected: String,
}

impl Test {
    fn new() -> Test {
        let folder = TempDir::with_prefix("guanxi-power-loss-").expect("a directory");
        let server = Server::start();
        let (sources, targets) = (node_run(20), node_run(20));
        let edges: Vec<(u64, u64)> =
            sources.iter().flat_map(|source| targets.iter().map(|t| (*source, *t))).collect();
        put_all(&server, "follow", &edges[..200]);
        let archive = folder.path().join("full.gxb");
        Cli::of(&server).run(&["backup", "--to", text(&archive)]).expect(0);
        let expected = everything(&server);
        Test { folder, archive, expected }
    }

    fn arguments<'a>(&'a self, data: &'a Path) -> [&'a str; 5] {
        ["restore", "--from", text(&self.archive), "--data-dir", text(data)]
    }

    /// The trace of one restore.
    fn record(&self) -> Trace {
        let (root, path) = (self.folder.path().join("recorded"), self.folder.path().join("trace"));
        fs::create_dir(&root).expect("a directory");
        let library = recorder::build(self.folder.path()).expect("the recorder compiles");
        let recording = Recording::start(&library, &root, &path).expect("a recording");
        let mut command = Command::new(binary());
        command.args(self.arguments(&root.join("data"))).stdin(Stdio::null());
        recording.attach(&mut command);
        let output = command.output().expect("the command runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = Trace::read(&path).expect("a trace");
        let state = State::after(&trace, trace.length()).expect("a whole trace");
        image::check_whole(&state, &root).expect("every call was recorded");
        trace
    }

    /// Whether the directory was whole as the cut left it.
    fn judge(&self, data: &Path, ended: bool) -> bool {
        let begun = data.join("GUANXI").exists();
        match Server::try_start_in(data) {
            Ok(server) if begun => {
                assert!(everything(&server) == self.expected, "it is served, so it is whole");
                true
            }
            // Nothing of it had reached the disk: it is as if it had never been begun.
            Ok(server) => {
                assert!(!ended, "the restore had ended, and nothing is left of it");
                assert!(!everything(&server).contains("follow"), "an empty one");
                false
            }
            Err(said) => {
                assert!(said.contains("is unfinished") && said.contains("again"), "{said}");
                assert!(!ended, "the restore had ended: {said}");
                Cli::default().run(&self.arguments(data)).expect(0);
                let server = Server::try_start_in(data).unwrap_or_else(|said| panic!("{said}"));
                assert!(everything(&server) == self.expected, "restored by the same command");
                false
            }
        }
    }
}

#[test]
fn a_restore_is_whole_or_known_as_unfinished_after_power_loss() {
    let test = Test::new();
    let trace = test.record();
    let mut rng = Rng::with_seed(SEED);
    let late = trace.length().saturating_sub(LATE_CALLS).max(trace.settled());
    let mut cuts: Vec<usize> = (0..IMAGES - 1)
        .map(|number| match number < LATE_IMAGES {
            true => rng.usize(late..trace.length()),
            false => rng.usize(trace.settled()..late),
        })
        .collect();
    cuts.push(trace.length());
    cuts.sort_unstable();
    let (mut state, mut replayed, mut whole) = (State::default(), 0, 0);
    for cut in cuts {
        state.advance(&trace, replayed, cut).expect("a whole trace");
        replayed = cut;
        let root = test.folder.path().join(format!("image-{cut}-{}", rng.u32(..)));
        println!("a cut before record {cut} of {}: {}", trace.length(), root.display());
        image::write(&state, Cut::Seeded(rng.u64(..)), &root).expect("an image");
        whole += usize::from(test.judge(&root.join("data"), cut == trace.length()));
        fs::remove_dir_all(&root).expect("the image is ours");
    }
    assert!((1..IMAGES).contains(&whole), "{whole} of {IMAGES} images were whole");
}
