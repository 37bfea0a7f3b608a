//! Small durable files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Attempt, DiskError};

/// Temporary names start with this; a sweep removes them.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// Makes `path` and its parents, and gives `path` itself exactly `mode`.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), DiskError> {
    let make = || {
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    make().attempting(|| format!("create directory {}", path.display()))
}

/// Writes `value` so that after a crash there is either the whole new file or what was there before.
pub(crate) fn write_json_durable(path: &Path, value: &impl Serialize) -> Result<(), DiskError> {
    let write = || -> io::Result<()> {
        let temporary = temporary_beside(path);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(value)?)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_parent(path)
    };
    write().attempting(|| format!("write {}", path.display()))
}

/// Reads a JSON file; `Ok(None)` when it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DiskError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).attempting(|| format!("read {}", path.display())),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| DiskError::Damaged { path: path.to_owned(), source })
}

/// Makes a rename or a removal in `path`'s directory durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// A name in the same directory that no other call uses.
pub(crate) fn temporary_beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!("{TEMPORARY}{}-{name}", hutch_types::ids::random_base36(10)))
}

/// Removes files and directories that were never finished. Returns how many.
pub(crate) fn remove_temporaries(dir: &Path) -> Result<usize, DiskError> {
    let mut removed = 0;
    for name in names(dir)? {
        if name.starts_with(TEMPORARY) {
            let path = dir.join(&name);
            let is_dir = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
            let done = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            done.attempting(|| format!("remove {}", path.display()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The names in a directory, without those that are not UTF-8 (we never make such). Empty when it does not exist.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, DiskError> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    };
    match list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.attempting(|| format!("list {}", dir.display())),
    }
}

/// Removal where "it is not there" is success.
pub(crate) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_write_replaces_the_file_and_leaves_nothing_else() -> Result<(), DiskError> {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.json");
        write_json_durable(&path, &vec![1, 2])?;
        write_json_durable(&path, &vec![3])?;
        assert_eq!(read_json::<Vec<u32>>(&path)?, Some(vec![3]));
        assert_eq!(names(dir.path())?, ["a.json"]);
        Ok(())
    }

    #[test]
    fn a_damaged_file_is_told_from_a_missing_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.json");
        assert!(matches!(read_json::<u32>(&path), Ok(None)));
        fs::write(&path, "{").expect("write");
        assert!(matches!(read_json::<u32>(&path), Err(DiskError::Damaged { .. })));
    }

    #[test]
    fn temporaries_are_removed_and_the_rest_is_kept() -> Result<(), DiskError> {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir_all(dir.path().join(".tmp-x/sub")).expect("dir");
        fs::write(dir.path().join(".tmp-y"), "").expect("file");
        fs::write(dir.path().join("keep"), "").expect("file");
        assert_eq!(remove_temporaries(dir.path())?, 2);
        assert_eq!(names(dir.path())?, ["keep"]);
        Ok(())
    }
}
