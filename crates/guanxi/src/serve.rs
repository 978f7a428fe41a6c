//! `guanxi serve`: reads the settings, opens the engine or joins the cluster, and serves it until a
//! signal says stop. This is the one place that knows which of the two it is.

#[cfg(feature = "cluster")]
pub mod cluster;
mod embedded;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_core::crew::{self, Crew, Lost};
use guanxi_core::deployment::Deployment;
use guanxi_model::{Change, Code, Region, Request, TenantId};

use crate::config::{self, Config, Mode};
use crate::failure::{Exit, Failure};
use crate::{server, telemetry};

/// How long the kinds of the file may take to be created.
const KINDS_DEADLINE: Duration = Duration::from_secs(30);
/// Threads for blocking work beside the bounded reads: signals, files, the engine's end.
const SPARE_BLOCKING_THREADS: usize = 4;

/// After a thread was lost: leases are given back meanwhile, and whoever asks hears why.
const LOST_GRACE: Duration = Duration::from_millis(1_500);
/// How long the end itself may take.
const LAST_WORDS: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  guanxi serve
  guanxi serve --config guanxi.toml
  guanxi serve --data-dir /var/lib/guanxi --listen 127.0.0.1:7421
  guanxi serve --config cluster.toml --roles api";

/// Runs the service.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// The settings; guanxi.toml shows them all with their defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The address to speak RESP on, such as 127.0.0.1:7421; without it nobody does.
    #[arg(long, value_name = "ADDR")]
    resp: Option<SocketAddr>,
    /// The primary to keep a read-only copy of, such as http://10.0.0.1:7420.
    #[arg(long, value_name = "URL")]
    follow: Option<String>,
    /// In a cluster, the parts that this instance plays: any of api, relay, applier and upkeep.
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Allows an address that other machines can reach, although nobody is asked for a key.
    #[arg(long)]
    allow_unauthenticated: bool,
}

pub fn serve(flags: Serve) -> Result<(), Failure> {
    let config = settings(flags)?;
    server::raise_open_files_limit();
    match config.mode {
        Mode::Embedded => embedded::serve(&config)?,
        #[cfg(feature = "cluster")]
        Mode::Cluster => cluster::serve(&config)?,
        #[cfg(not(feature = "cluster"))]
        Mode::Cluster => return Err(Failure::usage(crate::LACKS_CLUSTER)),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Ends the process, and with it all that hangs, when one of the threads is lost.
fn end_when_lost(crew: &Crew) {
    crew.when_lost(|lost| {
        // What is said last, and the end itself, may wait for what the lost thread has locked.
        let abort = || {
            std::thread::sleep(LOST_GRACE + LAST_WORDS);
            std::process::abort();
        };
        let watched = crew::aside("guanxi-abort", abort).is_ok();
        std::thread::sleep(LOST_GRACE);
        if watched {
            tracing::error!("{lost}: the process ends without a clean stop");
            let _said = failure(lost).report(false);
        }
        std::process::exit(Exit::Lost as i32);
    });
}

/// A thread that was lost while everything stopped.
fn none_lost(crew: &Crew) -> Result<(), Failure> {
    crew.lost().map_or(Ok(()), |lost| Err(failure(lost)))
}

fn failure(lost: &Lost) -> Failure {
    Failure::new(Exit::Lost, lost.to_string())
        .next("start it again: nothing acknowledged is lost; the log says where the thread failed")
}

/// File, environment and flags, checked, with the logs set up as they say.
fn settings(flags: Serve) -> Result<Config, Failure> {
    let loaded = config::load(flags.config.as_deref(), std::env::vars_os())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let mut config = loaded.config;
    config.data_dir = flags.data_dir.unwrap_or(config.data_dir);
    config.roles = flags.roles.unwrap_or(config.roles);
    config.http.listen = flags.listen.unwrap_or(config.http.listen);
    config.resp.listen = flags.resp.or(config.resp.listen);
    config.http.allow_unauthenticated |= flags.allow_unauthenticated;
    config.standby.follow = flags.follow.unwrap_or(config.standby.follow);
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    let addresses = [Some(config.http.listen), config.resp.listen];
    let is_open = |address: &SocketAddr| !address.ip().is_loopback();
    let open = addresses.into_iter().flatten().find(is_open);
    if let Some(address) = open.filter(|_| !config.http.allow_unauthenticated) {
        return Err(Failure::usage(format!(
            "{address} can be reached from other machines, and nobody is asked for a key yet; listen \
             on 127.0.0.1, or give --allow-unauthenticated if the network keeps strangers out"
        )));
    }
    telemetry::start_logs(&config.telemetry);
    for variable in loaded.unknown_variables {
        tracing::warn!(variable, "there is no setting of this name; it is ignored");
    }
    Ok(config)
}

fn region(config: &Config) -> Result<Region, Failure> {
    config.region().map_err(|error| Failure::usage(error.to_string()))
}

/// Threads that serve connections. Others need cores too: those that commit, and the system's.
fn serving_threads(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match config.http.workers {
        0 => cores.div_ceil(2),
        workers => workers,
    }
}

/// Threads for blocking work beside the bounded reads.
fn blocking_threads(config: &Config, blocking_max: usize) -> usize {
    config.http.blocking_reads_max + blocking_max + SPARE_BLOCKING_THREADS
}

fn no_runtime(error: io::Error) -> Failure {
    Failure::failed(format!("cannot start the runtime: {error}"))
}

/// The file creates kinds that are missing; what the store has stays as it is.
async fn create_missing_kinds(deployment: &dyn Deployment, config: &Config) -> Result<(), Failure> {
    let tenant = TenantId::DEFAULT;
    for kind in &config.kinds {
        let wrong = |message: &str| Failure::usage(format!("kind {}: {message}", kind.name));
        let spec = kind.clone().into_spec().map_err(|e| wrong(&e.message))?;
        if deployment.catalog().find(tenant, spec.name.as_str()).is_some() {
            continue;
        }
        let change = Change::CreateKind { tenant, spec: Box::new(spec) };
        let request = Request::one(tenant, change);
        let written = deployment.write(request, Instant::now() + KINDS_DEADLINE).await;
        let answers = written.map_err(|error| Failure::failed(error.to_string()))?;
        for answer in answers.answers {
            match answer {
                // Another instance that started at the same time was first.
                Err(error) if error.code == Code::Conflict && config.mode == Mode::Cluster => {}
                answer => drop(answer.map_err(|error| wrong(&error.message))?),
            }
        }
        tracing::info!(kind = kind.name, "created the kind that the settings name");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
