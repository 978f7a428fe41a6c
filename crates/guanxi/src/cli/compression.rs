//! Compressed files: gzip and zstd, known by their names when they are written, and by their
//! first bytes, which must agree with the name, when they are read.

use std::io::{self, Read, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::failure::Failure;

/// Bytes that tell a compression.
const MAGIC_BYTES: usize = 4;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// zstd's own default: as fast as disks, and small.
const ZSTD_LEVEL: i32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub fn of_name(path: &Path) -> Compression {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz" | "gzip") => Compression::Gzip,
            Some("zst" | "zstd") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    fn of_magic(first: &[u8]) -> Compression {
        if first.starts_with(GZIP_MAGIC) {
            Compression::Gzip
        } else if first.starts_with(ZSTD_MAGIC) {
            Compression::Zstd
        } else {
            Compression::None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }
}

/// The content of a file, whatever it is compressed with. `named` is what its name says it is,
/// where it says anything.
pub fn reader(
    mut raw: impl Read + Send + 'static,
    named: Compression,
    shown: &str,
) -> Result<Box<dyn Read + Send>, Failure> {
    let unreadable = |error: io::Error| Failure::file(format!("cannot read {shown}: {error}"));
    let mut first = Vec::with_capacity(MAGIC_BYTES);
    raw.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut first).map_err(unreadable)?;
    let found = Compression::of_magic(&first);
    if named != Compression::None && named != found {
        return Err(Failure::file(format!(
            "{shown} is not what its name says: {} instead of {}",
            found.name(),
            named.name()
        ))
        .next("rename it, or get a whole copy of it"));
    }
    let whole = io::Cursor::new(first).chain(raw);
    Ok(match found {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(whole).map_err(unreadable)?),
    })
}

/// Writes what is compressed on the way.
pub enum CompressedWriter<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> CompressedWriter<W> {
    pub fn new(out: W, compression: Compression) -> io::Result<CompressedWriter<W>> {
        Ok(match compression {
            Compression::None => CompressedWriter::Plain(out),
            Compression::Gzip => {
                CompressedWriter::Gzip(GzEncoder::new(out, flate2::Compression::default()))
            }
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                CompressedWriter::Zstd(encoder)
            }
        })
    }

    /// Writes the end that a whole file has.
    pub fn finish(self) -> io::Result<W> {
        match self {
            CompressedWriter::Plain(out) => Ok(out),
            CompressedWriter::Gzip(encoder) => encoder.finish(),
            CompressedWriter::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for CompressedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            CompressedWriter::Plain(out) => out.write(bytes),
            CompressedWriter::Gzip(encoder) => encoder.write(bytes),
            CompressedWriter::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            CompressedWriter::Plain(out) => out.flush(),
            CompressedWriter::Gzip(encoder) => encoder.flush(),
            CompressedWriter::Zstd(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_a_cut_is_noticed() {
        let text = "a line that is long enough to be compressed\n".repeat(1_000);
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let mut writer = CompressedWriter::new(Vec::new(), compression).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
            let bytes = writer.finish().unwrap();
            let read = |bytes: &[u8]| {
                let raw = io::Cursor::new(bytes.to_vec());
                let mut content = String::new();
                let mut reader = reader(raw, compression, "file").map_err(|_| "name")?;
                reader.read_to_string(&mut content).map_err(|_| "content")?;
                Ok::<_, &str>(content)
            };
            assert_eq!(read(&bytes).as_ref(), Ok(&text));
            if compression != Compression::None {
                assert_eq!(read(&bytes[..bytes.len() - 3]), Err("content"));
                assert_eq!(read(text.as_bytes()), Err("name"));
                assert_eq!(read(b""), Err("name"));
            }
        }
    }
}
