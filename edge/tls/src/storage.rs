//! Files that are either there completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Mode of files that hold a key.
pub(crate) const SECRET: u32 = 0o600;
/// Mode of files that every client on the machine reads.
pub(crate) const PUBLIC: u32 = 0o644;

/// A file of ours cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {}", path.display())]
pub struct StorageError {
    attempt: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Makes a folder that everybody may look into; the files say for themselves who may read them.
pub(crate) fn make_dir(path: &Path) -> Result<(), StorageError> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|source| StorageError {
        attempt: "make the folder",
        path: path.to_owned(),
        source,
    })
}

/// Reads a text; `None` when there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, StorageError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StorageError { attempt: "read", path: path.to_owned(), source }),
    }
}

/// Puts `text` at `path` with `mode`; whoever reads it meanwhile sees the old text or the new one.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), StorageError> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    let attempt = || -> io::Result<()> {
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // `create_new` makes sure that the mode is ours and not an older file's.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        match path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    };
    attempt().map_err(|source| StorageError { attempt: "write", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/key");
        make_dir(path.parent().unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        write(&path, "one", PUBLIC).unwrap();
        write(&path, "two", SECRET).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SECRET);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    }
}
