//! Database files as files.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::{DatabaseError, unusable};

/// Only the owner reads and writes: there are tokens inside.
pub(super) const MODE: u32 = 0o600;

/// Sees to it that the file exists, durably, with the right mode. SQLite gives its log files the mode of the database.
pub(super) async fn prepare(path: &Path) -> Result<(), DatabaseError> {
    let path = path.to_owned();
    blocking(path.clone(), "cannot be created", move || create(&path)).await
}

/// Runs file work where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    path: PathBuf,
    failure: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DatabaseError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(unusable(&path, failure, e)),
        Err(e) => Err(unusable(&path, failure, e)),
    }
}

fn create(path: &Path) -> io::Result<()> {
    let folder = folder_of(path);
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    sync_folder(folder)
}

/// The folder that holds `path`.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes new names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_file_name_is_in_the_working_folder() {
        assert_eq!(folder_of(Path::new("hutch.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("/data/hutch.db")), Path::new("/data"));
    }
}
