//! The guest build: `init` and `envd`, kept by content.
//!
//! An instance boots from a directory that never changes afterwards, so that a daemon with a newer build leaves running
//! instances alone, and a memory snapshot finds the bytes that its processes had mapped.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use sha2::{Digest, Sha256};

/// What a build consists of.
const FILES: [&str; 2] = ["envd", "init"];

/// Copies the build in `from` to its own directory below `store`, unless it is there, and returns that.
pub(crate) fn install(from: &Path, store: &Path) -> io::Result<PathBuf> {
    let mut hash = Sha256::new();
    let mut contents = Vec::new();
    for name in FILES {
        let path = from.join(name);
        let bytes =
            fs::read(&path).map_err(|e| io::Error::new(e.kind(), format!("read {}: {e}", path.display())))?;
        hash.update(bytes.len().to_le_bytes());
        hash.update(&bytes);
        contents.push((name, bytes));
    }
    let name: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
    let target = store.join(&name);
    if target.is_dir() {
        return Ok(target);
    }
    let temporary = store.join(format!(".{name}.tmp"));
    if temporary.exists() {
        fs::remove_dir_all(&temporary)?;
    }
    fs::create_dir_all(&temporary)?;
    for (name, bytes) in &contents {
        let path = temporary.join(name);
        fs::write(&path, bytes)?;
        // The guest's root is nobody here, so everybody must be able to run them.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        File::open(&path)?.sync_all()?;
    }
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
    File::open(&temporary)?.sync_all()?;
    fs::rename(&temporary, &target)?;
    File::open(store)?.sync_all()?;
    Ok(target)
}

/// Mounts `store` read-only at `mount`, unless it is mounted there.
pub(crate) fn publish(store: &Path, mount: &Path) -> io::Result<()> {
    fs::create_dir_all(mount)?;
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    if id(store)? == id(mount)? {
        return Ok(());
    }
    rustix::mount::mount_bind(store, mount)?;
    rustix::mount::mount_change(mount, MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount(mount, flags, c"")?)
}

/// Undoes [`publish`]. That it is not mounted is no error.
pub(crate) fn withdraw(mount: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mount, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_dir(mount) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(dir: &Path, envd: &str) {
        fs::write(dir.join("init"), "init").unwrap();
        fs::write(dir.join("envd"), envd).unwrap();
    }

    #[test]
    fn each_build_has_a_directory_of_its_own_that_stays() {
        let (from, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        build(from.path(), "one");
        let one = install(from.path(), store.path()).unwrap();
        assert_eq!(one, install(from.path(), store.path()).unwrap());
        build(from.path(), "two");
        let two = install(from.path(), store.path()).unwrap();
        assert_ne!(one, two);
        assert_eq!(fs::read_to_string(one.join("envd")).unwrap(), "one");
        assert_eq!(fs::metadata(two.join("init")).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_build_that_was_not_finished_is_made_again() {
        let (from, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        build(from.path(), "one");
        let path = install(from.path(), store.path()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        fs::rename(&path, store.path().join(format!(".{name}.tmp"))).unwrap();
        fs::remove_file(store.path().join(format!(".{name}.tmp/init"))).unwrap();
        install(from.path(), store.path()).unwrap();
        assert!(path.join("init").exists());
    }

    #[test]
    fn a_missing_binary_is_named() {
        let (from, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = install(from.path(), store.path()).unwrap_err();
        assert!(error.to_string().contains("envd"), "{error}");
    }
}
