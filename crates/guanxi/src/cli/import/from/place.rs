//! Where in its source an import stands. The server counts the lines that are done and commits the
//! count with them; which place in the source a count stands for is kept here, in a file that is
//! written before the lines are sent. Whatever was stopped when, the count leads to the place, and
//! a line that was rejected after all to what was sent.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use guanxi_model::import::ImportId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::file::Part;
use crate::cli::unfinished::{Purpose, Unfinished};
use crate::failure::Failure;

const PURPOSE: Purpose = Purpose {
    name: "import",
    nothing: "the import's place is kept there (--place), so nothing more was sent",
};

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
    /// A later run has sent something behind so many lines, and read it from the place before them.
    /// If the server has more lines than that, nobody knows whose they are: they are sent again.
    #[serde(default)]
    tried_behind: Option<u64>,
    /// The lines that are sent, each with where the source has it, for a file of rejected lines.
    #[serde(default)]
    lines: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct PlaceFile {
    path: PathBuf,
    id: String,
    from: String,
}

/// Where to go on.
#[derive(Debug, PartialEq)]
pub enum Begin {
    At {
        place: Place,
        /// The run before has sent lines behind it, which the server may still be taking.
        ahead: bool,
    },
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
    pub fn begin(&self, lines: u64) -> Result<Begin, Failure> {
        let kept = self.read()?;
        let shown = self.path.display();
        if let Some(kept) = &kept
            && (kept.id != self.id || kept.from != self.from)
        {
            let message =
                format!("{shown} belongs to another import, {} from {}", kept.id, kept.from);
            return Err(Failure::usage(message).next("name another file with --place"));
        }
        let ahead = kept.as_ref().is_some_and(|kept| kept.last > lines);
        if lines == 0 {
            return Ok(Begin::At { place: Place::Null, ahead });
        }
        let found = kept.and_then(|kept| {
            let unsure = kept.tried_behind.filter(|tried| *tried < lines);
            let (end, within) = (kept.last == lines, kept.last >= lines || unsure.is_some());
            let sure = unsure.unwrap_or(lines);
            let (_, place) = kept.places.into_iter().rfind(|(done, _)| *done <= sure)?;
            within.then_some(match kept.finished && end && unsure.is_none() {
                true => Begin::Finished,
                false => Begin::At { place, ahead },
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

    /// What was sent last, as far as it was kept.
    pub fn sent(&self) -> Result<Part, Failure> {
        let kept = self.read()?;
        let before = kept.as_ref().and_then(|kept| kept.places.first().cloned());
        let (before, place) = before.unwrap_or_default();
        let mut part = Part::of_lines(before, place);
        for (label, line) in kept.into_iter().flat_map(|kept| kept.lines) {
            part.push(line.as_bytes(), label);
        }
        Ok(part)
    }

    /// Something is to be sent behind so many lines while the places of an earlier run stand; or
    /// nothing, once it was refused.
    pub fn note_try(&self, tried_behind: Option<u64>) -> Result<(), Failure> {
        match self.read()? {
            Some(kept) => self.replace(&Kept { tried_behind, ..kept }),
            None => Ok(()),
        }
    }

    /// Keeps the places of a part that is to be sent, and its lines if they may be asked for.
    pub fn keep(&self, part: &Part, with_lines: bool) -> Result<(), Failure> {
        let lines = if with_lines { part.labelled_lines() } else { Vec::new() };
        self.write(part.places.clone(), part.last(), lines, false)
    }

    /// The source was read to its end, which is behind so many lines.
    pub fn keep_the_end(&self, lines: u64) -> Result<(), Failure> {
        self.write(vec![(lines, Place::Null)], lines, Vec::new(), true)
    }

    fn write(
        &self,
        places: Vec<(u64, Place)>,
        last: u64,
        lines: Vec<(String, String)>,
        finished: bool,
    ) -> Result<(), Failure> {
        let (id, from) = (self.id.clone(), self.from.clone());
        self.replace(&Kept { id, from, finished, places, last, tried_behind: None, lines })
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
    fn replace(&self, kept: &Kept) -> Result<(), Failure> {
        let file = Unfinished::begin(&self.path, PURPOSE)?;
        let written = serde_json::to_vec(kept)
            .map_err(io::Error::from)
            .and_then(|text| file.file().write_all(&text));
        written.map_err(|error| file.cannot_write(&error))?;
        file.finish()
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
        let at = |place, ahead| Begin::At { place, ahead };
        assert_eq!(file.begin(0).unwrap(), at(Place::Null, false));
        assert!(file.begin(1).is_err(), "nothing tells where that is");
        let mut part = Part::of_lines(10, json!("a"));
        for (line, place) in [("11", Some("b")), ("12", None), ("13", None), ("14", None)] {
            part.push(line.as_bytes(), format!("row {line}"));
            place.into_iter().for_each(|place| part.mark(json!(place)));
        }
        part.push(b"15", "row 15".into());
        part.mark(json!("c"));
        part.push(b"16", "row 16".into());
        part.push(b"17", "row 17".into());
        file.keep(&part, true).unwrap();
        for (lines, place) in [(10, "a"), (11, "b"), (14, "b"), (15, "c"), (17, "c")] {
            assert_eq!(file.begin(lines).unwrap(), at(json!(place), lines < 17), "{lines}");
        }
        assert_eq!(file.begin(0).unwrap(), at(Place::Null, true), "it may all still come");
        let sent = file.sent().unwrap();
        assert_eq!((sent.line(11), sent.label(17)), (Some(&b"11"[..]), Some("row 17")));
        assert_eq!((sent.line(10), sent.line(18)), (None, None));
        assert!(file.begin(9).is_err() && file.begin(18).is_err());
        // A second run has tried behind 14 lines, and read what it sent from place b.
        file.note_try(Some(14)).unwrap();
        assert_eq!(file.begin(14).unwrap(), at(json!("b"), true));
        for lines in [15, 17, 18] {
            let ahead = lines < 17;
            assert_eq!(file.begin(lines).unwrap(), at(json!("b"), ahead), "whose is {lines}?");
        }
        file.note_try(None).unwrap();
        assert_eq!(file.begin(15).unwrap(), at(json!("c"), true), "it was refused");
        file.keep(&part, false).unwrap();
        assert_eq!(file.sent().unwrap().line(11), None);
        file.keep_the_end(17).unwrap();
        assert_eq!(file.begin(17).unwrap(), Begin::Finished);
        assert!(PlaceFile::new(Some(&path), &id, "there").begin(17).is_err());
        fs::write(&path, "x").unwrap();
        assert!(file.begin(0).is_err());
    }
}
