//! What can go wrong with a backup: files that are cut, changed or no backups at all, commands
//! that are killed or stopped in the middle, and disks that are full. Nothing is ever half done.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use guanxi_tests::{
    Cli, Ran, Server, assert_lists_and_tallies_agree, binary, edge, node_run, poll_until, put_all,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How often a command is killed in the middle.
const KILLS: u64 = 12;

struct Bench {
    server: Server,
    folder: TempDir,
    sources: Vec<u64>,
    targets: Vec<u64>,
}

impl Bench {
    /// A server with so many edges for each of a few users.
    fn with(sources: usize, targets: usize) -> Bench {
        let server = Server::start();
        let (sources, targets) = (node_run(sources), node_run(targets));
        for source in &sources {
            let edges: Vec<(u64, u64)> = targets.iter().map(|target| (*source, *target)).collect();
            put_all(&server, "follow", &edges);
        }
        Bench { server, folder: TempDir::new().expect("a folder"), sources, targets }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cli(&self) -> Cli {
        Cli::of(&self.server)
    }

    #[track_caller]
    fn backed_up(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        self.cli().run(&["backup", "--to", text(&path)]).expect(0);
        path
    }

    /// Starts what was restored and compares it with what was written.
    #[track_caller]
    fn assert_whole(&self, directory: &Path) {
        let server = Server::try_start_in(directory).unwrap_or_else(|said| panic!("{said}"));
        let Bench { sources, targets, .. } = self;
        let found = assert_lists_and_tallies_agree(&server, "follow", sources, targets);
        assert_eq!(found.len(), sources.len() * targets.len());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}

fn verify(path: &Path) -> Ran {
    Cli::default().run(&["backup", "--verify", text(path)])
}

fn restore(from: &Path, to: &Path) -> Ran {
    Cli::default().run(&["restore", "--from", text(from), "--data-dir", text(to)])
}

fn signal(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("it fits")).expect("not zero");
    // It may have ended by itself.
    let _ = kill_process(pid, signal);
}

/// Waits until the command has made this file, or has ended, and then a little.
fn wait_for(path: &Path, process: &mut Child, then: Duration) {
    poll_until("the command begins or ends", Duration::from_secs(60), || {
        let ended = process.try_wait().expect("the process is ours").is_some();
        (ended || path.exists()).then_some(())
    });
    thread::sleep(then);
}

#[track_caller]
fn assert_refused(bytes: &[u8], bench: &Bench, words: &[&str]) {
    let (path, data) = (bench.path("changed"), bench.path("none"));
    fs::write(&path, bytes).unwrap();
    verify(&path).expect_words(1, words);
    restore(&path, &data).expect_words(1, words);
    assert!(!data.exists(), "nothing was made");
}

#[test]
fn a_cut_archive_is_named_as_such() {
    let bench = Bench::with(3, 200);
    let whole = fs::read(bench.backed_up("full")).unwrap();
    let mut lengths = vec![1, 7, 8, 15, 16, 31, 32, whole.len() - 1, whole.len() - 17];
    lengths.extend((1..10).map(|tenth| whole.len() * tenth / 10));
    for length in lengths {
        assert_refused(&whole[..length], &bench, &["changed: it is cut off after"]);
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert_refused(&longer, &bench, &["it goes on after its end"]);
    assert_refused(&[whole.as_slice(), &whole].concat(), &bench, &["it goes on after its end"]);
}

#[test]
fn a_changed_archive_is_refused() {
    let bench = Bench::with(3, 200);
    let whole = fs::read(bench.backed_up("full")).unwrap();
    let mut offsets = vec![8, 12, 16, 17, 20, 24, 28, 40, whole.len() - 1, whole.len() - 20];
    offsets.extend((1..12).map(|part| whole.len() * part / 12));
    for offset in offsets {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0x10;
        assert_refused(&bytes, &bench, &["changed: it is "]);
    }
    let mut newer = whole.clone();
    newer[8] += 1;
    let format = format!("format {}", newer[8]);
    let crc = crc32c(&newer[..12]);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_refused(&newer, &bench, &[&format, "use the newer version of guanxi"]);
}

/// Bit by bit, as the polynomial says: the test knows no code of the service.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

#[test]
fn what_is_no_archive_is_refused() {
    let bench = Bench::with(1, 1);
    for bytes in [&b""[..], b"G", b"source,target\n1,2\n", b"PK\x03\x04", &[0; 4096]] {
        let words = match bytes {
            b"G" => "it is cut off after 1 bytes",
            _ => "it is not a backup of guanxi",
        };
        assert_refused(bytes, &bench, &[words]);
    }
    verify(bench.folder.path()).expect_words(1, &["cannot be opened"]);
    verify(&bench.path("none")).expect_words(1, &["cannot be opened"]);
    Cli::default().run(&["backup"]).expect(2);
    Cli::default().run(&["backup", "--verify", "a", "--to", "b"]).expect(2);
}

/// The file has its name only when it is whole, whenever the command was killed.
#[test]
fn a_killed_backup_leaves_no_file_and_is_taken_again() {
    let bench = Bench::with(40, 250);
    let path = bench.path("full");
    let part = path.with_added_extension("part");
    let mut cut = 0;
    for round in 0..KILLS {
        let _ = fs::remove_file(&part);
        let mut process = bench.cli().spawn(&["backup", "--to", text(&path)], Stdio::null());
        wait_for(&part, &mut process, Duration::from_millis(5 * round));
        signal(&process, Signal::KILL);
        process.wait().unwrap();
        cut += u64::from(part.exists());
        if path.exists() {
            verify(&path).expect(0);
            fs::remove_file(&path).unwrap();
        }
    }
    assert!(cut > 0, "none of {KILLS} was killed in the middle");
    // Over what a killed one left.
    fs::write(&part, [7; 1 << 20]).unwrap();
    bench.backed_up("full");
    let names = fs::read_dir(bench.folder.path()).unwrap().map(|name| name.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["full"], "nothing else is left");
    restore(&path, &bench.path("data")).expect(0);
    bench.assert_whole(&bench.path("data"));
}

#[test]
fn a_backup_that_is_stopped_or_whose_server_goes_says_so() {
    let bench = Bench::with(40, 250);
    let path = bench.path("full");
    let mut stopped = 0;
    for round in 0..KILLS {
        let mut process = bench.cli().spawn(&["backup", "--to", text(&path)], Stdio::null());
        let part = path.with_added_extension("part");
        wait_for(&part, &mut process, Duration::from_millis(5 * round));
        signal(&process, Signal::INT);
        let ran = Ran::of(process);
        match ran.code {
            Some(0) => fs::remove_file(&path).unwrap(),
            Some(3) => {
                stopped += 1;
                ran.expect_words(3, &["stopped by Ctrl-C"]);
                assert!(!path.exists() && !path.with_added_extension("part").exists());
            }
            other => panic!("{other:?}: {}", ran.stderr),
        }
    }
    assert!(stopped > 0, "none of {KILLS} was stopped in the middle");
    // The server goes while it sends.
    let process = bench.cli().spawn(&["backup", "--to", text(&path)], Stdio::null());
    thread::sleep(Duration::from_millis(30));
    let server = bench.server.kill();
    let ran = Ran::of(process);
    match ran.code {
        Some(0) => verify(&path).expect(0).code,
        _ => {
            assert!(!path.exists() && !path.with_added_extension("part").exists());
            ran.expect(3).code
        }
    };
    drop(server);
}

/// A directory that a killed restore left is refused by the service, and restored by the same
/// command again.
#[test]
fn a_killed_restore_is_begun_anew() {
    let bench = Bench::with(40, 250);
    let (path, data) = (bench.backed_up("full"), bench.path("data"));
    let arguments = ["restore", "--from", text(&path), "--data-dir", text(&data)];
    let mut unfinished = 0;
    for round in 0..KILLS {
        // Every other one begins over what the one before has left.
        if round % 2 == 0 && data.exists() {
            fs::remove_dir_all(&data).unwrap();
        }
        let mut process = Cli::default().spawn(&arguments, Stdio::null());
        wait_for(&data.join("LANDING"), &mut process, Duration::from_millis(20 * round));
        signal(&process, if round % 3 == 2 { Signal::INT } else { Signal::KILL });
        process.wait().unwrap();
        if data.join("LANDING").exists() {
            unfinished += 1;
            let said =
                Server::try_start_in(&data).err().expect("an unfinished directory is refused");
            assert!(said.contains("is unfinished") && said.contains("again"), "{said}");
        } else if data.join("GUANXI").exists() {
            // It had ended already.
            bench.assert_whole(&data);
            fs::remove_dir_all(&data).unwrap();
        }
    }
    assert!(unfinished > 0, "none of {KILLS} was killed in the middle");
    restore(&path, &data).expect(0);
    bench.assert_whole(&data);
}

/// Runs a command that may write no file beyond so many KiB: what a full disk looks like.
fn run_limited(kib: u32, arguments: &[&str], server: &Server) -> Ran {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    let process = Command::new("bash")
        .args(["-c", &script, "bash"])
        .arg(binary())
        .args(arguments)
        .env("GUANXI_SERVER", server.url())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash runs");
    Ran::of(process)
}

/// It is not opened as if it were whole, nor as a new one, and the refusal says what to do.
#[track_caller]
fn assert_unfinished(data: &Path) {
    let said = Server::try_start_in(data).err().expect("an unfinished directory is refused");
    for words in ["is unfinished", "there is room", "run that command again"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_first_copy_onto_a_full_disk_is_begun_anew() {
    let bench = Bench::with(40, 250);
    let data = bench.path("copy");
    let url = bench.server.url();
    for kib in [0, 1, 64, 600] {
        let listen = ["--listen", "127.0.0.1:0", "--data-dir", text(&data)];
        let arguments = [&["serve", "--follow", &url][..], &listen].concat();
        let ran = run_limited(kib, &arguments, &bench.server);
        ran.expect(3);
        assert_unfinished(&data);
    }
    let standby = Server::try_start_following(&data, &url).unwrap_or_else(|said| panic!("{said}"));
    let Bench { sources, targets, .. } = &bench;
    let found = assert_lists_and_tallies_agree(&standby, "follow", sources, targets);
    assert_eq!(found.len(), sources.len() * targets.len());
}

#[test]
fn a_full_disk_leaves_no_backup_and_no_directory() {
    let bench = Bench::with(40, 250);
    let (path, data) = (bench.path("full"), bench.path("data"));
    for kib in [0, 1, 8] {
        let ran = run_limited(kib, &["backup", "--to", text(&path)], &bench.server);
        ran.expect_words(3, &["cannot write", "no backup was made"]);
        assert!(!path.exists() && !path.with_added_extension("part").exists());
    }
    bench.backed_up("full");
    for kib in [0, 1, 64, 600] {
        let arguments = ["restore", "--from", text(&path), "--data-dir", text(&data)];
        let ran = run_limited(kib, &arguments, &bench.server);
        ran.expect(3);
        assert_unfinished(&data);
    }
    restore(&path, &data).expect(0);
    bench.assert_whole(&data);
    bench.server.put(edge("follow", 1, 2)).ok();
}
