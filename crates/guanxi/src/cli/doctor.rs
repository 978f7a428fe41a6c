//! `guanxi doctor`: looks at a server and at the machine, and says for each thing whether it is
//! well and what to do if not. It changes nothing.

mod machine;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::CommandContext;
use super::output::Style;
use crate::config::{self, Config};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi doctor
  guanxi doctor --server http://10.0.0.5:7420
  guanxi doctor --config guanxi.toml --data-dir /var/lib/guanxi   # on the server's machine";

/// Checks a server and this machine, and says what to do about what is wrong.
///
/// Exits with 1 when something is wrong.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    /// Checks this file of settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Checks this data directory and its disk; that of --config unless given.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckVerdict {
    Ok,
    /// It works, but not for long or not as it should.
    Warn,
    Fail,
}

/// What one look has shown.
#[derive(Debug, Serialize)]
struct CheckFinding {
    check: &'static str,
    verdict: CheckVerdict,
    message: String,
    /// What to do; nothing when all is well.
    next: Option<String>,
}

impl CheckFinding {
    fn ok(check: &'static str, message: impl Into<String>) -> CheckFinding {
        CheckFinding { check, verdict: CheckVerdict::Ok, message: message.into(), next: None }
    }

    fn warn(
        check: &'static str,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> CheckFinding {
        let next = Some(next.into());
        CheckFinding { check, verdict: CheckVerdict::Warn, message: message.into(), next }
    }

    fn fail(
        check: &'static str,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> CheckFinding {
        let next = Some(next.into());
        CheckFinding { check, verdict: CheckVerdict::Fail, message: message.into(), next }
    }
}

impl Doctor {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let mut findings = Vec::new();
        let settings = self.settings(&mut findings);
        let reached = server::check(&context.client, &mut findings);
        if !reached {
            let listen = settings.as_ref().map(|settings| settings.http.listen);
            let address = listen.or_else(|| address_of(context.client.server()));
            findings.extend(address.map(machine::port));
        }
        let data_dir = self.data_dir.or(settings.map(|settings| settings.data_dir));
        if let Some(data_dir) = data_dir {
            findings.push(machine::directory(&data_dir));
            findings.extend(machine::disk(&data_dir));
        }
        findings.push(machine::open_files());
        report(context, &findings)
    }

    /// The settings that `guanxi serve` would have with this file.
    fn settings(&self, findings: &mut Vec<CheckFinding>) -> Option<Config> {
        let path = self.config.as_deref()?;
        match config::load(Some(path), std::env::vars_os()) {
            Ok(loaded) => {
                findings.push(CheckFinding::ok("settings", format!("{} is right", path.display())));
                for variable in loaded.unknown_variables {
                    findings.push(CheckFinding::warn(
                        "settings",
                        format!("there is no setting for the environment variable {variable}"),
                        "guanxi.toml shows every setting; GUANXI_ and its path is the variable",
                    ));
                }
                Some(loaded.config)
            }
            Err(error) => {
                let next = "mend the file; guanxi.toml shows every setting with its default";
                findings.push(CheckFinding::fail("settings", error.to_string(), next));
                None
            }
        }
    }
}

/// Where a server on this machine would listen; none when the server is elsewhere.
fn address_of(server: &str) -> Option<SocketAddr> {
    let address = server.strip_prefix("http://")?.replace("localhost", "127.0.0.1");
    let address: SocketAddr = address.parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

fn report(context: &mut CommandContext, findings: &[CheckFinding]) -> Result<(), Failure> {
    let output = &mut context.output;
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for finding in findings {
        if output.json() {
            output.value(finding)?;
            continue;
        }
        let verdict = match finding.verdict {
            CheckVerdict::Ok => output.paint(Style::Good, "ok  "),
            CheckVerdict::Warn => output.paint(Style::Warning, "warn"),
            CheckVerdict::Fail => output.paint(Style::Bad, "fail"),
        };
        output.line(&format!("{verdict}  {:<width$}  {}", finding.check, finding.message))?;
        if let Some(next) = &finding.next {
            output.line(&format!("{:indent$}{next}", "", indent = width + 8))?;
        }
    }
    output.flush()?;
    let wrong = findings.iter().filter(|finding| finding.verdict == CheckVerdict::Fail).count();
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::found("1 thing is wrong")),
        wrong => Err(Failure::found(format!("{wrong} things are wrong"))),
    }
}
