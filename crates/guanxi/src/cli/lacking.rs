//! Commands of the cluster in a program that was built without it: they say so.

use clap::Args;

use crate::LACKS_CLUSTER;
use crate::failure::Failure;

/// Not in this program.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct LackingCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<String>,
}

impl LackingCommand {
    pub fn run(self) -> Result<(), Failure> {
        Err(Failure::usage(LACKS_CLUSTER))
    }
}
