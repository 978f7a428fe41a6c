//! How quickly Guanxi takes files of follows: into an empty directory, and into a running service
//! that has the graph already.

use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::wire::peer::Ending;
use crate::wire::peer::guanxi::{DATA, Guanxi, imports_offline, run_import, write_file};
use crate::wire::report::ImportRow;

/// One after the other into the running service.
const FILES: usize = 2;

/// Files of so many lines; the directory is that of a stopped service.
pub fn measure(directory: &Path, lines: u64) -> anyhow::Result<Vec<ImportRow>> {
    let file = directory.join("follows.csv");
    let mut rows = Vec::new();
    let mut add = |how: &str, took: Duration| {
        let rate = lines as f64 / took.as_secs_f64();
        eprintln!("import {how}: {rate:.0}/s");
        rows.push(ImportRow { how: how.to_owned(), lines, rate });
    };
    if imports_offline()? {
        let empty = directory.join("empty");
        write_follows(&file, lines)?;
        add(
            "into an empty directory",
            run_import(&file, ["--data-dir".as_ref(), empty.as_os_str()])?,
        );
        std::fs::remove_dir_all(&empty)?;
    }
    let guanxi = Rc::new(Guanxi::start(&directory.join(DATA))?);
    for number in 0..FILES {
        write_follows(&file, lines)?;
        let how = if number == 0 { "into a running service" } else { "as many again" };
        add(how, guanxi.import(&file)?);
    }
    std::fs::remove_file(&file)?;
    Guanxi::end(guanxi, Ending::Stop)?;
    Ok(rows)
}

/// Follows of anybody by anybody, none of them known.
fn write_follows(file: &Path, lines: u64) -> anyhow::Result<()> {
    write_file(file, |to| {
        writeln!(to, "kind,source,target")?;
        (0..lines).try_for_each(|_| {
            let [source, target] = [(); 2].map(|()| crate::commit::random_id());
            writeln!(to, "follow,{source},{target}")
        })
    })
}
