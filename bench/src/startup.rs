//! How long a start takes: after a clean stop, and after kill -9 in the middle of writing.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guanxi_embedded::{Engine, Settings};
use guanxi_model::{Request, TenantId};

use crate::commit::put;

const TENANT: TenantId = TenantId::DEFAULT;
const CALLERS: usize = 256;
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub struct Arguments {
    /// Data directory of an earlier `commit` run.
    #[arg(long)]
    dir: PathBuf,
    /// How long the killed writer writes.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for round in 1..=arguments.rounds {
        open("after a clean stop", round, arguments)?.close();
        let mut writer = Command::new(std::env::current_exe()?)
            .arg("write-until-killed")
            .arg("--dir")
            .arg(&arguments.dir)
            .stdout(Stdio::null())
            .spawn()?;
        sleep(Duration::from_secs(arguments.seconds));
        // SIGKILL: nothing is flushed, nothing is closed.
        writer.kill()?;
        writer.wait()?;
        open("after kill -9", round, arguments)?.close();
    }
    Ok(())
}

fn open(what: &str, round: u32, arguments: &Arguments) -> anyhow::Result<std::sync::Arc<Engine>> {
    let begun = Instant::now();
    let engine = Engine::open(Settings::new(&arguments.dir))?;
    let took = begun.elapsed().as_secs_f64();
    println!("round {round}: open {what} {took:.3} s, position {}", engine.status().applied.0);
    Ok(engine)
}

/// As many puts as it can until somebody ends it.
pub fn write_until_killed(arguments: &Arguments) -> anyhow::Result<()> {
    let engine = Engine::open(Settings::new(&arguments.dir))?;
    let kind = engine.catalog().named(TENANT, "follow")?.id;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    runtime.block_on(async {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let engine = engine.clone();
                // Ends by itself should nobody kill it.
                let end = Instant::now() + 10 * DEADLINE;
                tokio::spawn(async move {
                    while Instant::now() < end {
                        let request = Request::one(TENANT, put(kind, None));
                        engine.write(request, Instant::now() + DEADLINE).await?;
                    }
                    Ok::<_, guanxi_model::Error>(())
                })
            })
            .collect();
        for caller in callers {
            caller.await??;
        }
        Ok(())
    })
}
