//! Where in its source an import stands. The server counts the lines that are done and commits the
//! count with them; which place in the source a count stands for is kept here, in a file that is
//! written before the lines are sent. Whatever was stopped when, the count leads to the place.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use guanxi_model::import::ImportId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// A source's own words for a place in it; null is its beginning.
pub type Place = Value;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    id: String,
    /// What the import is from, without passwords.
    from: String,
    /// The source was read to its end.
    finished: bool,
    /// Numbers of lines with the place behind them, ascending. The first is what was done when
    /// the file was written.
    places: Vec<(u64, Place)>,
    /// The last line that is sent with them; there may be no place right behind it.
    last: u64,
}

#[derive(Debug)]
pub struct PlaceFile {
    path: PathBuf,
    id: String,
    from: String,
}

/// Where to go on.
#[derive(Debug, PartialEq)]
pub enum Standing {
    At(Place),
    /// All is done.
    Finished,
}

impl PlaceFile {
    pub fn new(path: Option<&Path>, id: &ImportId, from: &str) -> PlaceFile {
        let named = || PathBuf::from(format!("guanxi-import-{}.place", id.as_str()));
        let path = path.map_or_else(named, Path::to_owned);
        PlaceFile { path, id: id.as_str().to_owned(), from: from.to_owned() }
    }

    /// The place behind so many lines.
    pub fn standing(&self, lines: u64) -> Result<Standing, Failure> {
        let kept = self.read()?;
        let shown = self.path.display();
        if let Some(kept) = &kept
            && (kept.id != self.id || kept.from != self.from)
        {
            let message =
                format!("{shown} belongs to another import, {} from {}", kept.id, kept.from);
            return Err(Failure::usage(message).next("name another file with --place"));
        }
        if lines == 0 {
            return Ok(Standing::At(Place::Null));
        }
        let found = kept.and_then(|kept| {
            let (end, within) = (kept.last == lines, kept.last >= lines);
            let place = kept.places.into_iter().rfind(|(done, _)| *done <= lines)?;
            within.then_some(match kept.finished && end {
                true => Standing::Finished,
                false => Standing::At(place.1),
            })
        });
        found.ok_or_else(|| {
            Failure::file(format!(
                "import {} has {lines} lines done, and {shown} does not tell where in the source \
                 that is",
                self.id
            ))
            .next(
                "run it where that file is, or name the file with --place; --id with another name \
                 imports from the beginning, which changes nothing that is done already",
            )
        })
    }

    /// The places behind lines, of which this is the last.
    pub fn keep(&self, places: &[(u64, Place)], last: u64, finished: bool) -> Result<(), Failure> {
        let kept = Kept {
            id: self.id.clone(),
            from: self.from.clone(),
            finished,
            places: places.to_vec(),
            last,
        };
        self.write(&kept).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", self.path.display())).next(
                "name a file that can be written with --place; the import's place is kept there",
            )
        })
    }

    fn read(&self) -> Result<Option<Kept>, Failure> {
        let shown = self.path.display();
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::file(format!("cannot read {shown}: {error}"))),
        };
        serde_json::from_slice(&text).map(Some).map_err(|_| {
            Failure::file(format!("{shown} is no file that an import keeps its place in"))
                .next("name another file with --place")
        })
    }

    /// Either the old file or the new one is there, whatever happens.
    fn write(&self, kept: &Kept) -> io::Result<()> {
        let mut unfinished = self.path.as_os_str().to_owned();
        unfinished.push(".new");
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(kept)?)?;
        file.sync_data()?;
        fs::rename(&unfinished, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_count_of_lines_leads_to_its_place() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("p");
        let id = ImportId::new("x").unwrap();
        let file = PlaceFile::new(Some(&path), &id, "here");
        assert_eq!(file.standing(0).unwrap(), Standing::At(Place::Null));
        assert!(file.standing(1).is_err(), "nothing tells where that is");
        let places = [(10, json!("a")), (11, json!("b")), (15, json!("c"))];
        file.keep(&places, 17, false).unwrap();
        for (lines, place) in [(10, "a"), (11, "b"), (14, "b"), (15, "c"), (17, "c")] {
            assert_eq!(file.standing(lines).unwrap(), Standing::At(json!(place)), "{lines}");
        }
        assert!(file.standing(9).is_err() && file.standing(18).is_err());
        file.keep(&places, 15, true).unwrap();
        assert_eq!(file.standing(15).unwrap(), Standing::Finished);
        assert_eq!(file.standing(11).unwrap(), Standing::At(json!("b")));
        assert!(PlaceFile::new(Some(&path), &id, "there").standing(11).is_err());
        fs::write(&path, "x").unwrap();
        assert!(file.standing(0).is_err());
    }
}
