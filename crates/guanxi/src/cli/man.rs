//! `guanxi man`: the manual, made from the same tree of commands as the help texts.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;

use super::{CommandContext, CommandLine};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  guanxi man | man -l -
  guanxi man --out ~/.local/share/man/man1   # a page per command: man guanxi-put";

/// Prints the manual page, or writes one page per command into a directory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Man {
    /// The directory to write into; made when it is not there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let mut command = CommandLine::command().disable_help_subcommand(true);
        command.build();
        let Some(directory) = self.out else {
            let mut page = Vec::new();
            let rendered = Page::new(command).render(&mut page);
            rendered
                .map_err(|error| Failure::failed(format!("cannot make the manual: {error}")))?;
            return context.output.bytes(&page);
        };
        let mut pages = Vec::new();
        fs::create_dir_all(&directory)
            .and_then(|()| write_pages(command, &directory, &mut pages))
            .map_err(|error| unwritable(&directory, &error))?;
        if context.output.json() {
            return pages.iter().try_for_each(|path| context.output.value(path));
        }
        context.output.line(&format!("{} pages in {}", pages.len(), directory.display()))
    }
}

/// A page for the command and for each below it, named as `guanxi-groups-list.1`.
fn write_pages(command: Command, directory: &Path, pages: &mut Vec<PathBuf>) -> io::Result<()> {
    for below in command.get_subcommands().cloned() {
        write_pages(below, directory, pages)?;
    }
    pages.push(Page::new(command).generate_to(directory)?);
    Ok(())
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write the manual into {}: {error}", path.display()))
        .next("choose a directory that you may write to with --out")
}
