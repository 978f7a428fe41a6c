//! `guanxi completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{CommandContext, CommandLine};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi completions bash > ~/.local/share/bash-completion/completions/guanxi
  guanxi completions zsh > \"${fpath[1]}/_guanxi\"
  guanxi completions fish > ~/.config/fish/completions/guanxi.fish";

/// Prints the completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell to complete in.
    shell: Shell,
}

impl Completions {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        // Gathered first: the generator would panic on a closed pipe.
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut CommandLine::command(), "guanxi", &mut text);
        context.output.bytes(&text)
    }
}
