//! Reads tar archives that nobody vouches for.
//!
//! Header blocks are decoded by the `tar` crate. Its entry iterator is not used: it keeps long names and extended
//! headers of any size in memory, and an archive may claim gigabytes for one.

use std::io::{self, Read};

use tar::{EntryType, Header, PaxExtensions};

use crate::error::ImportError;

const BLOCK: usize = 512;

/// Most bytes of a long name or an extended header.
const MOST_EXTENDED_BYTES: u64 = 1024 * 1024;

/// Most bytes of a file: what the largest filesystems hold, and far from where sums overflow.
const MOST_ENTRY_BYTES: u64 = 1 << 50;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink { target: Vec<u8> },
    HardLink { target: Vec<u8> },
    Fifo,
    Device,
}

/// An entry without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub size: u64,
    pub uid: u64,
    pub gid: u64,
    pub mode: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Only those in the `user.` namespace.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Walks over the entries of an archive.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    source: R,
    /// Content of the current entry that was not read yet, and the padding behind it.
    content_left: u64,
    padding: u64,
}

/// What extension entries said about the entry that follows them.
#[derive(Debug, Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, content_left: 0, padding: 0 }
    }

    /// Where the archive comes from.
    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// The archive's bytes, once the entries are through.
    pub(crate) fn into_source(self) -> R {
        self.source
    }

    /// The next entry, or `None` at the end mark. Skips content of the last one that was not read.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, ImportError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip(self.content_left + self.padding)?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = extensions.size.take().map_or_else(|| field("size", header.entry_size()), Ok)?;
            if size > MOST_ENTRY_BYTES {
                return Err(ImportError::TooLarge { what: "bytes in one entry", limit: MOST_ENTRY_BYTES });
            }
            // Links, directories and the like have no content, whatever their size field says.
            self.content_left = if has_content(header.entry_type()) { size } else { 0 };
            self.padding = self.content_left.next_multiple_of(BLOCK as u64) - self.content_left;
            match header.entry_type() {
                EntryType::GNULongName => extensions.path = Some(self.long_name()?),
                EntryType::GNULongLink => extensions.link = Some(self.long_name()?),
                EntryType::XHeader => extensions.read_pax(&self.extended()?)?,
                EntryType::XGlobalHeader => {}
                _ => return self.entry(&header, extensions, size).map(Some),
            }
        }
    }

    /// Reads content of the current entry. `Ok(0)` at its end.
    pub(crate) fn read_content(&mut self, buf: &mut [u8]) -> Result<usize, ImportError> {
        let most = usize::try_from(self.content_left).unwrap_or(usize::MAX).min(buf.len());
        let Some(buf) = buf.get_mut(..most).filter(|b| !b.is_empty()) else { return Ok(0) };
        let count = retrying(|| self.source.read(buf)).map_err(ImportError::Read)?;
        if count == 0 {
            return Err(malformed("it ends inside an entry"));
        }
        self.content_left -= count as u64;
        Ok(count)
    }

    fn entry(&self, header: &Header, ext: Extensions, size: u64) -> Result<Entry, ImportError> {
        let path = ext.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = ext.link.or_else(|| header.link_name_bytes().map(|l| l.into_owned()));
        let link = || link.filter(|l| !l.is_empty()).ok_or_else(|| malformed("a link without a target"));
        let kind = match header.entry_type() {
            // Archives older than POSIX mark directories only by a trailing slash.
            EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink { target: link()? },
            EntryType::Link => Kind::HardLink { target: link()? },
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => Kind::Device,
            other => {
                return Err(ImportError::Refused {
                    entry: String::from_utf8_lossy(&path).into_owned(),
                    what: if other.is_gnu_sparse() { "sparse entries are not read" } else { "unknown type" },
                });
            }
        };
        Ok(Entry {
            path,
            kind,
            size,
            uid: ext.uid.map_or_else(|| field("owner", header.uid()), Ok)?,
            gid: ext.gid.map_or_else(|| field("group", header.gid()), Ok)?,
            mode: field("mode", header.mode())? & 0o7777,
            mtime: match ext.mtime {
                Some(mtime) => mtime,
                None => (field("time", header.mtime())?.try_into().unwrap_or(0), 0),
            },
            xattrs: ext.xattrs,
        })
    }

    /// The next header block; `None` at the end mark.
    fn header(&mut self) -> Result<Option<Header>, ImportError> {
        let mut header = Header::new_old();
        self.source.read_exact(header.as_mut_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => malformed("it ends without an end mark"),
            _ => ImportError::Read(error),
        })?;
        if header.as_bytes().iter().all(|b| *b == 0) {
            return Ok(None);
        }
        // The checksum counts its own field as spaces.
        let sum: u32 = header
            .as_bytes()
            .iter()
            .enumerate()
            .map(|(n, b)| if (148..156).contains(&n) { 32 } else { u32::from(*b) })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(malformed("a header's checksum is wrong"));
        }
        Ok(Some(header))
    }

    /// The whole content of the current entry.
    fn extended(&mut self) -> Result<Vec<u8>, ImportError> {
        if self.content_left > MOST_EXTENDED_BYTES {
            return Err(ImportError::TooLarge {
                what: "bytes in one extended header",
                limit: MOST_EXTENDED_BYTES,
            });
        }
        let mut content = vec![0; usize::try_from(self.content_left).unwrap_or(0)];
        self.source.read_exact(&mut content).map_err(ImportError::Read)?;
        self.content_left = 0;
        Ok(content)
    }

    fn long_name(&mut self) -> Result<Vec<u8>, ImportError> {
        let mut name = self.extended()?;
        if name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ImportError> {
        let skipped =
            io::copy(&mut self.source.by_ref().take(bytes), &mut io::sink()).map_err(ImportError::Read)?;
        if skipped < bytes {
            return Err(malformed("it ends inside an entry"));
        }
        let content = self.content_left.min(bytes);
        self.content_left -= content;
        self.padding -= bytes - content;
        Ok(())
    }
}

impl Extensions {
    fn read_pax(&mut self, content: &[u8]) -> Result<(), ImportError> {
        for record in PaxExtensions::new(content) {
            let record = record.map_err(|_| malformed("an extended header cannot be read"))?;
            let (key, value) = (record.key_bytes(), record.value_bytes());
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|v| v.parse().ok())
                    .ok_or_else(|| malformed("a number in an extended header cannot be read"))
            };
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.uid = Some(number()?),
                b"gid" => self.gid = Some(number()?),
                b"mtime" => self.mtime = decimal_time(value),
                _ if key.starts_with(b"GNU.sparse.") => {
                    return Err(malformed("sparse entries are not read"));
                }
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.").filter(|n| n.starts_with(b"user."))
                    {
                        self.xattrs.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

fn has_content(kind: EntryType) -> bool {
    !matches!(
        kind,
        EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
    )
}

/// `seconds[.fraction]`; what is not understood counts as not given.
fn decimal_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = seconds.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // -1.25 is 1.25 s before the epoch: -2 s and 0.75 s.
    if seconds.starts_with('-') && nanos > 0 {
        Some((whole.checked_sub(1)?, 1_000_000_000 - nanos))
    } else {
        Some((whole, nanos))
    }
}

fn field<T>(name: &str, value: io::Result<T>) -> Result<T, ImportError> {
    value.map_err(|_| malformed(&format!("a header's {name} cannot be read")))
}

fn malformed(what: &str) -> ImportError {
    ImportError::Malformed { what: what.to_owned() }
}

fn retrying(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_fractions_are_read_on_both_sides_of_the_epoch() {
        assert_eq!(decimal_time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(decimal_time(b"12"), Some((12, 0)));
        assert_eq!(decimal_time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(decimal_time(b"12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(decimal_time(b"x"), None);
    }

    #[test]
    fn an_extended_header_that_claims_gigabytes_is_refused_before_anything_is_read() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(8 << 30);
        header.set_cksum();
        let bytes = header.as_bytes().to_vec();
        let error = Reader::new(&bytes[..]).next_entry().expect_err("refused");
        assert!(matches!(error, ImportError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn garbage_and_cut_archives_are_malformed() {
        for bytes in [&b""[..], &[0xff; 512], &[1; 100]] {
            let error = Reader::new(bytes).next_entry().expect_err("refused");
            assert!(matches!(error, ImportError::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn a_size_near_the_largest_number_does_not_overflow() {
        let mut header = Header::new_gnu();
        header.set_size(u64::MAX - 3);
        header.set_path("x").expect("path");
        header.set_cksum();
        let bytes = header.as_bytes().to_vec();
        let mut reader = Reader::new(&bytes[..]);
        // Either answer is fine, a panic is not.
        if reader.next_entry().is_ok() {
            assert!(reader.next_entry().is_err());
        }
    }
}
