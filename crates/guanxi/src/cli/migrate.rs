//! `guanxi migrate`: makes a cluster's tables and topics, or brings them up to this release.

use std::path::PathBuf;

use clap::Args;
use guanxi_cluster::instance::{self, Migrated};
use serde_json::json;

use super::CommandContext;
use crate::config::{self, Mode, without_passwords};
use crate::failure::Failure;
use crate::serve;

const EXAMPLES: &str = "\
Examples:
  guanxi migrate --config cluster.toml

Run it before the first start and before instances of a newer release start. It may run while \
instances serve, and again when it is done already.";

/// Makes a cluster's tables and topics, or brings them up to this release.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Migrate {
    /// The cluster's settings.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Migrate {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let loaded = config::load(Some(&self.config), std::env::vars_os())
            .map_err(|error| Failure::usage(error.to_string()))?;
        let config = loaded.config;
        if config.mode != Mode::Cluster {
            let message = "the settings are of an embedded service, which has no tables or topics";
            return Err(Failure::usage(message).next("set mode = \"cluster\""));
        }
        let settings = serve::cluster::settings(&config)?;
        let migrated = instance::migrate(&settings)
            .map_err(|error| Failure::failed(without_passwords(&error.to_string())))?;
        let Migrated { versions, version, topics } = migrated;
        let output = &mut context.output;
        if output.json() {
            return output.value(&json!({
                "tables_version": version,
                "migrations": versions,
                "topics_created": topics,
            }));
        }
        match versions.is_empty() {
            true => output.line(&format!("tables: at version {version} already"))?,
            false => {
                let names: Vec<String> = versions.iter().map(u32::to_string).collect();
                let names = names.join(", ");
                output.line(&format!("tables: ran {names}; now at version {version}"))?;
            }
        }
        match topics.is_empty() {
            true => output.line("topics: all there already"),
            false => output.line(&format!("topics: created {}", topics.join(", "))),
        }
    }
}
