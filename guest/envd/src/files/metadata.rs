//! What users attach to files: `X-Metadata-<key>: <value>` of an upload is kept as the extended attribute
//! `user.e2b.<key>` and shown wherever the file is described. Programs in the sandbox may set it there, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use http::HeaderMap;
use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;

/// Keys, lowercase, and values.
pub(crate) type Metadata = BTreeMap<String, String>;

const HEADER_PREFIX: &str = "x-metadata-";
const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// The kernel takes names of 255 bytes.
const MAX_KEY_BYTES: usize = 255 - ATTRIBUTE_PREFIX.len();
/// Names and values of one file together. ext4 has one block for them.
const MAX_TOTAL_BYTES: usize = 4096;
/// The kernel never returns more names than this.
const MAX_LIST_BYTES: usize = 64 << 10;

/// Why metadata cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MetadataError {
    #[error("metadata key of {0} bytes is longer than {MAX_KEY_BYTES}")]
    LongKey(usize),
    #[error("metadata value of '{0}' has characters other than printable ASCII")]
    Unprintable(String),
    #[error("metadata of {0} bytes is larger than {MAX_TOTAL_BYTES}")]
    TooLarge(usize),
}

/// The metadata in an upload's headers. Of a repeated header the first counts.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Metadata, MetadataError> {
    let mut metadata = Metadata::new();
    let mut total = 0;
    for name in headers.keys() {
        // Names of headers are lowercase tokens here, so that a key is printable ASCII by itself.
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX).filter(|k| !k.is_empty()) else { continue };
        if key.len() > MAX_KEY_BYTES {
            return Err(MetadataError::LongKey(key.len()));
        }
        let value = headers.get(name).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let value = std::str::from_utf8(value)
            .ok()
            .filter(|v| v.bytes().all(|b| matches!(b, b' '..=b'~')))
            .ok_or_else(|| MetadataError::Unprintable(key.to_owned()))?;
        total += ATTRIBUTE_PREFIX.len() + key.len() + value.len();
        metadata.insert(key.to_owned(), value.to_owned());
    }
    if total > MAX_TOTAL_BYTES {
        return Err(MetadataError::TooLarge(total));
    }
    Ok(metadata)
}

/// The metadata of what is at `path`, links followed. Best effort: a file that cannot be asked has none, and
/// neither has one on a file system without extended attributes. Values that are not UTF-8 are left out.
pub(crate) fn read(path: &Path) -> Metadata {
    collect(|list| fs::listxattr(path, list), |name, value| fs::getxattr(path, name, value))
}

/// As [`read`], for an open file.
pub(super) fn read_open(file: &File) -> Metadata {
    collect(|list| fs::flistxattr(file, list), |name, value| fs::fgetxattr(file, name, value))
}

fn collect(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&str, &mut [u8]) -> rustix::io::Result<usize>,
) -> Metadata {
    let keys = names(list).unwrap_or_default();
    if keys.is_empty() {
        return Metadata::new();
    }
    let mut buffer = vec![0; MAX_LIST_BYTES];
    keys.into_iter()
        .filter_map(|key| {
            let length = get(&format!("{ATTRIBUTE_PREFIX}{key}"), &mut buffer).ok()?;
            let value = std::str::from_utf8(buffer.get(..length)?).ok()?;
            Some((key, value.to_owned()))
        })
        .collect()
}

/// The keys of a file's metadata.
fn names(list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<String>> {
    // Most files have no attributes, or few.
    let mut buffer = vec![0; 256];
    let length = match list(&mut buffer) {
        Err(Errno::RANGE) => {
            buffer.resize(MAX_LIST_BYTES, 0);
            list(&mut buffer)?
        }
        other => other?,
    };
    let names = buffer.get(..length).unwrap_or_default().split(|b| *b == 0);
    Ok(names
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix(ATTRIBUTE_PREFIX))
        .map(str::to_owned)
        .collect())
}

/// Makes `metadata` the whole metadata of an open file: what it had before is gone. A file system without extended
/// attributes takes none, silently, since the content matters more; the answer to the upload shows what was kept.
///
/// # Errors
/// What the kernel says, such as that there is no space.
pub(super) fn replace(file: &File, metadata: &Metadata) -> rustix::io::Result<()> {
    let present = match names(|list| fs::flistxattr(file, list)) {
        Err(Errno::NOTSUP) => return Ok(()),
        other => other?,
    };
    for key in present.iter().filter(|key| !metadata.contains_key(*key)) {
        match fs::fremovexattr(file, format!("{ATTRIBUTE_PREFIX}{key}")) {
            // Someone else was faster.
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    for (key, value) in metadata {
        match fs::fsetxattr(file, format!("{ATTRIBUTE_PREFIX}{key}"), value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOTSUP) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (n.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(v).unwrap()))
            .collect()
    }

    fn map(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn metadata_is_what_its_headers_say() {
        let given = headers(&[("X-Metadata-Author", b"mish"), ("x-metadata-", b"no key"), ("accept", b"x")]);
        assert_eq!(from_headers(&given), Ok(map(&[("author", "mish")])));
        assert_eq!(from_headers(&headers(&[("x-metadata-e", b"")])), Ok(map(&[("e", "")])));
        let mut twice = headers(&[("x-metadata-a", b"1")]);
        twice.append("x-metadata-a", HeaderValue::from_static("2"));
        assert_eq!(from_headers(&twice), Ok(map(&[("a", "1")])));
    }

    #[test]
    fn metadata_that_files_cannot_carry_is_refused() {
        let long = format!("x-metadata-{}", "k".repeat(MAX_KEY_BYTES));
        assert!(from_headers(&headers(&[(&long, b"v")])).is_ok());
        let longer = format!("{long}k");
        assert_eq!(
            from_headers(&headers(&[(&longer, b"v")])),
            Err(MetadataError::LongKey(MAX_KEY_BYTES + 1))
        );
        for value in [&b"caf\xc3\xa9"[..], b"a\tb", b"\xff"] {
            let error = Err(MetadataError::Unprintable("k".to_owned()));
            assert_eq!(from_headers(&headers(&[("x-metadata-k", value)])), error);
        }
        let room = MAX_TOTAL_BYTES - ATTRIBUTE_PREFIX.len() - 1;
        assert!(from_headers(&headers(&[("x-metadata-k", &vec![b'v'; room])])).is_ok());
        let error = Err(MetadataError::TooLarge(MAX_TOTAL_BYTES + 1));
        assert_eq!(from_headers(&headers(&[("x-metadata-k", &vec![b'v'; room + 1])])), error);
    }

    #[test]
    fn replacing_leaves_nothing_of_what_was_there() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("f");
        let file = File::create(&path).unwrap();
        assert_eq!(read(&path), Metadata::new());
        let long = "k".repeat(200);
        replace(&file, &map(&[("a", "1"), (&long, "2")])).unwrap();
        assert_eq!(read(&path), map(&[("a", "1"), (&long, "2")]));
        replace(&file, &map(&[("a", "1"), ("b", "2")])).unwrap();
        assert_eq!(read(&path), map(&[("a", "1"), ("b", "2")]));
        fs::fsetxattr(&file, "user.other", b"kept", XattrFlags::empty()).unwrap();
        fs::fsetxattr(&file, "user.e2b.bad", b"\xff", XattrFlags::empty()).unwrap();
        replace(&file, &map(&[("b", "3")])).unwrap();
        assert_eq!(read_open(&file), map(&[("b", "3")]));
        assert!(fs::fgetxattr(&file, "user.other", &mut [0; 8][..]).is_ok());
        assert_eq!(read(Path::new("/nowhere")), Metadata::new());
        let virtual_file = File::open("/proc/self/status").unwrap();
        assert_eq!(replace(&virtual_file, &map(&[("a", "1")])), Ok(()));
    }

    proptest! {
        #[test]
        fn accepted_metadata_is_within_its_bounds(
            keys in proptest::collection::vec("[a-z0-9!#_-]{1,300}", 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
            let given: HeaderMap = keys
                .iter()
                .map(|k| (format!("x-metadata-{k}").parse::<HeaderName>().unwrap(), value.clone()))
                .collect();
            if let Ok(metadata) = from_headers(&given) {
                let size: usize = metadata.iter().map(|(k, v)| ATTRIBUTE_PREFIX.len() + k.len() + v.len()).sum();
                prop_assert!(size <= MAX_TOTAL_BYTES);
                prop_assert!(metadata.keys().all(|k| (1..=MAX_KEY_BYTES).contains(&k.len())));
                prop_assert!(metadata.values().all(|v| v.bytes().all(|b| (0x20..0x7f).contains(&b))));
                prop_assert_eq!(metadata.len(), given.keys_len());
            }
        }
    }
}
