//! Where in its source an import stands. The server counts the lines that are done and commits the
//! count with them; which place in the source a count stands for is kept here, in a file that is
//! written before the lines are sent. Whatever was stopped when, the count leads to the place, and
//! a line that was rejected after all to what was sent.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use guanxi_model::import::{ImportId, LinesDigest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::file::ImportPart;
use super::super::standing::ImportStanding;
use crate::cli::unfinished::{FilePurpose, UnfinishedFile};
use crate::failure::Failure;

const PURPOSE: FilePurpose = FilePurpose {
    name: "import",
    nothing: "the import's place is kept there (--place), so nothing more was sent",
};

/// A source's own words for a place in it; null is its beginning.
pub type SourcePlace = Value;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceContent {
    id: String,
    /// What the import is from, without passwords.
    from: String,
    /// The source was read to its end.
    finished: bool,
    /// Numbers of lines with the place behind them and how many rows up to there became no line,
    /// ascending. The first is what was done when the file was written.
    places: Vec<(u64, SourcePlace, u64)>,
    /// The last line that is sent with them; there may be no place right behind it.
    last: u64,
    /// What a later run has sent behind some of these lines.
    tried: Option<Tried>,
    /// The lines that are sent, each with where the source has it, for a file of rejected lines.
    lines: Vec<(String, String)>,
}

/// A line that finds out whether the server still takes those of an earlier run. Only one of both
/// can follow what is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// Its number.
    line: u64,
    /// The digest of all lines up to it; none where the server does not tell digests.
    digest: Option<String>,
    /// The place behind it, up to which so many rows became no line.
    place: SourcePlace,
    skipped: u64,
}

impl Tried {
    pub fn of(part: &ImportPart, standing: &ImportStanding) -> Tried {
        let digest = standing.digest.map(|mut digest| {
            part.digest(part.last(), &mut digest);
            digest.to_text()
        });
        let (place, skipped) = part.end();
        Tried { line: part.last(), digest, place, skipped }
    }

    /// Whether it was taken, as far as so many lines and their digest tell.
    fn is_taken(&self, lines: u64, digest: Option<LinesDigest>) -> Option<bool> {
        match lines == self.line {
            true => Some(*self.digest.as_ref()? == digest?.to_text()),
            // Behind it nothing was sent: more lines than it are those of the earlier run.
            false => Some(false),
        }
    }
}

#[derive(Debug)]
pub struct PlaceFile {
    path: PathBuf,
    id: String,
    from: String,
}

/// Where to go on.
#[derive(Debug, PartialEq)]
pub struct Begin {
    /// None where all is done.
    pub place: Option<SourcePlace>,
    /// The run before has sent lines behind it, which the server may still be taking.
    pub ahead: bool,
    /// Rows up to there that became no line.
    pub skipped: u64,
}

impl PlaceFile {
    pub fn new(path: Option<&Path>, id: &ImportId, from: &str) -> PlaceFile {
        let named = || PathBuf::from(format!("guanxi-import-{}.place", id.as_str()));
        let path = path.map_or_else(named, Path::to_owned);
        PlaceFile { path, id: id.as_str().to_owned(), from: from.to_owned() }
    }

    /// The place behind so many lines, of which the server tells the digest.
    pub fn begin(&self, lines: u64, digest: Option<LinesDigest>) -> Result<Begin, Failure> {
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
            return Ok(Begin { place: Some(SourcePlace::Null), ahead, skipped: 0 });
        }
        let found = kept.filter(|kept| kept.last >= lines).and_then(|kept| {
            let taken = kept.tried.as_ref().map(|tried| tried.is_taken(lines, digest));
            let sure = match (kept.tried, taken) {
                (Some(Tried { place, skipped, .. }), Some(Some(true))) => {
                    return Some(Begin { place: Some(place), ahead, skipped });
                }
                // Nobody knows whose line that is: it is sent again.
                (Some(tried), Some(None)) => tried.line - 1,
                _ => lines,
            };
            let (_, place, skipped) = kept.places.into_iter().rfind(|(done, ..)| *done <= sure)?;
            let finished = kept.finished && kept.last == lines;
            Some(Begin { place: (!finished).then_some(place), ahead, skipped })
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
    pub fn sent(&self) -> Result<ImportPart, Failure> {
        let kept = self.read()?;
        let before = kept.as_ref().and_then(|kept| kept.places.first().cloned());
        let (before, place, skipped) = before.unwrap_or_default();
        let mut part = ImportPart::of_lines(before, place, skipped);
        for (label, line) in kept.into_iter().flat_map(|kept| kept.lines) {
            part.push(line.as_bytes(), label);
        }
        Ok(part)
    }

    /// Something is to be sent while the places of an earlier run stand; or nothing, once it was
    /// refused.
    pub fn note_try(&self, tried: Option<Tried>) -> Result<(), Failure> {
        match self.read()? {
            Some(kept) => self.replace(&PlaceContent { tried, ..kept }),
            None => Ok(()),
        }
    }

    /// Keeps the places of a part that is to be sent, and its lines if they may be asked for.
    pub fn keep(&self, part: &ImportPart, with_lines: bool) -> Result<(), Failure> {
        let lines = if with_lines { part.labelled_lines() } else { Vec::new() };
        self.write(part.places.clone(), part.last(), lines, false)
    }

    /// The source was read to its end, which is behind so many lines and rows that became none.
    pub fn keep_the_end(&self, lines: u64, skipped: u64) -> Result<(), Failure> {
        self.write(vec![(lines, SourcePlace::Null, skipped)], lines, Vec::new(), true)
    }

    fn write(
        &self,
        places: Vec<(u64, SourcePlace, u64)>,
        last: u64,
        lines: Vec<(String, String)>,
        finished: bool,
    ) -> Result<(), Failure> {
        let (id, from) = (self.id.clone(), self.from.clone());
        self.replace(&PlaceContent { id, from, finished, places, last, tried: None, lines })
    }

    fn read(&self) -> Result<Option<PlaceContent>, Failure> {
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
    fn replace(&self, kept: &PlaceContent) -> Result<(), Failure> {
        let file = UnfinishedFile::begin(&self.path, PURPOSE)?;
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
        let begin = |lines| file.begin(lines, None);
        let at = |place: SourcePlace, ahead, skipped| Begin { place: Some(place), ahead, skipped };
        assert_eq!(begin(0).unwrap(), at(SourcePlace::Null, false, 0));
        assert!(begin(1).is_err(), "nothing tells where that is");
        let mut part = ImportPart::of_lines(10, json!("a"), 3);
        for (line, place) in [("11", Some("b")), ("12", None), ("13", None), ("14", None)] {
            part.push(line.as_bytes(), format!("row {line}"));
            place.into_iter().for_each(|place| part.mark(json!(place), 4));
        }
        part.push(b"15", "row 15".into());
        part.mark(json!("before c"), 5);
        part.mark(json!("c"), 6);
        part.push(b"16", "row 16".into());
        part.push(b"17", "row 17".into());
        file.keep(&part, true).unwrap();
        let places = [(10, "a", 3), (11, "b", 4), (14, "b", 4), (15, "c", 6), (17, "c", 6)];
        for (lines, place, skipped) in places {
            assert_eq!(begin(lines).unwrap(), at(json!(place), lines < 17, skipped), "{lines}");
        }
        assert_eq!(begin(0).unwrap(), at(SourcePlace::Null, true, 0), "it may all still come");
        let sent = file.sent().unwrap();
        assert_eq!((sent.line(11), sent.label(17)), (Some(&b"11"[..]), Some("row 17")));
        assert_eq!((sent.line(10), sent.line(18)), (None, None));
        assert!(begin(9).is_err() && begin(18).is_err());
        file.keep(&part, false).unwrap();
        assert_eq!(file.sent().unwrap().line(11), None);
        file.keep_the_end(17, 7).unwrap();
        assert_eq!(begin(17).unwrap(), Begin { place: None, ahead: false, skipped: 7 });
        assert!(PlaceFile::new(Some(&path), &id, "there").begin(17, None).is_err());
        fs::write(&path, "x").unwrap();
        assert!(begin(0).is_err());
    }

    #[test]
    fn a_line_that_was_tried_is_known_by_the_digest() {
        let folder = tempfile::TempDir::new().unwrap();
        let id = ImportId::new("x").unwrap();
        let file = PlaceFile::new(Some(&folder.path().join("p")), &id, "here");
        let of = |line: &str, place: &str| {
            let mut part = ImportPart::of_lines(14, json!("start"), 0);
            part.push(line.as_bytes(), String::new());
            part.mark(json!(place), 1);
            part
        };
        let mut killed = of("killed 15", "killed");
        killed.push(b"killed 16", String::new());
        killed.mark(json!("killed 16"), 2);
        file.keep(&killed, false).unwrap();
        let standing =
            ImportStanding { lines: 14, digest: Some(LinesDigest(5)), ..ImportStanding::default() };
        file.note_try(Some(Tried::of(&of("tried 15", "tried"), &standing))).unwrap();
        let digest_with = |line: &[u8]| {
            let mut digest = LinesDigest(5);
            digest.take(line);
            Some(digest)
        };
        let begin = |lines, digest| file.begin(lines, digest).unwrap().place.unwrap();
        assert_eq!(begin(14, Some(LinesDigest(5))), "start");
        assert_eq!(begin(15, digest_with(b"tried 15")), "tried");
        assert_eq!(begin(15, digest_with(b"killed 15")), "killed");
        assert_eq!(begin(15, None), "start", "whose is it?");
        assert_eq!(begin(16, digest_with(b"killed 15")), "killed 16", "one line was tried");
        file.note_try(None).unwrap();
        assert_eq!(begin(15, digest_with(b"tried 15")), "killed", "it was refused");
    }
}
