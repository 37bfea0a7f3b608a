//! Removing trees.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use connectrpc::ConnectError;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::fault::rpc_error;

/// Removes what is at `path`, with everything in it; links are removed, not followed. Nothing there is fine, too.
///
/// # Errors
/// `invalid_argument` for the root directory, otherwise as the kernel says.
pub(super) fn remove(path: &Path) -> Result<(), ConnectError> {
    let real = path.components().filter(|c| !matches!(c, Component::CurDir | Component::RootDir));
    if real.clone().next().is_none()
        || std::fs::canonicalize(path).is_ok_and(|p| p == Path::new("/") && !is_link(path))
    {
        return Err(ConnectError::invalid_argument("the root directory cannot be removed"));
    }
    remove_tree(path).or_else(|error| match error.kind() {
        // A file on the way means that there is nothing at the path.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(()),
        _ => Err(rpc_error("removing", path, &error)),
    })
}

fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink())
}

/// As `rm -rf`, for trees of any depth: a constant number of open files, no recursion, no long paths.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    // A slash at the end would follow a link.
    let bytes = path.as_os_str().as_bytes();
    let trimmed =
        bytes.iter().rposition(|b| *b != b'/').map_or(bytes, |last| bytes.get(..=last).unwrap_or(bytes));
    let path = Path::new(OsStr::from_bytes(trimmed));
    if !std::fs::symlink_metadata(path)?.is_dir() {
        return std::fs::remove_file(path);
    }
    let mut here = open_dir(CWD, path)?;
    // The directories on the way down: the name of each, and which directory it is in.
    let mut way: Vec<(CString, Id)> = Vec::new();
    loop {
        match clear(&here)? {
            Cleared::Empty => match way.pop() {
                None => break,
                Some((name, parent)) => {
                    here = open_dir(&here, c"..")?;
                    if Id::of(&here)? != parent {
                        return Err(io::Error::other("a directory was moved while its tree was removed"));
                    }
                    gone(rustix::fs::unlinkat(&here, &name, AtFlags::REMOVEDIR))?;
                }
            },
            Cleared::Inner(name) => match open_dir(&here, name.as_c_str()) {
                Ok(inner) => {
                    way.push((name, Id::of(&here)?));
                    here = inner;
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            },
        }
    }
    drop(here);
    std::fs::remove_dir(path)
}

/// Which directory an open one is.
#[derive(Debug, PartialEq, Eq)]
struct Id(u64, u64);

impl Id {
    fn of(dir: &OwnedFd) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(dir)?;
        #[allow(clippy::useless_conversion, reason = "the width differs between targets")]
        Ok(Self(stat.st_dev.into(), stat.st_ino.into()))
    }
}

enum Cleared {
    /// Nothing is left in it.
    Empty,
    /// A directory that must be cleared first.
    Inner(CString),
}

/// Removes everything up to the first directory that is not empty.
fn clear(dir: &OwnedFd) -> rustix::io::Result<Cleared> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
            _ => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
        };
        match removed {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => return Ok(Cleared::Inner(name.to_owned())),
            other => gone(other)?,
        }
    }
    Ok(Cleared::Empty)
}

/// Someone else may have been faster.
fn gone(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn open_dir(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_goes_with_everything_in_it_but_not_what_its_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, other) = (dir.path().join("tree"), dir.path().join("other"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir_all(tree.join("a/d")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "x").unwrap();
        symlink(&other, tree.join("a/link")).unwrap();
        symlink(&other, dir.path().join("link")).unwrap();

        remove(&tree).unwrap();
        assert!(!tree.exists());
        remove(&dir.path().join("link/")).unwrap();
        assert!(!is_link(&dir.path().join("link")));
        assert!(other.join("file").exists());
        remove(&other.join("file")).unwrap();
        assert!(!other.join("file").exists());
    }

    #[test]
    fn nothing_there_is_fine_and_the_root_is_not_touched() {
        remove(Path::new("/nowhere/at/all")).unwrap();
        remove(Path::new("/etc/passwd/x")).unwrap();
        for path in ["/", "//", "/.", "/tmp/..", "/./tmp/../"] {
            assert_eq!(remove(Path::new(path)).unwrap_err().code.as_str(), "invalid_argument", "{path}");
        }
    }

    #[test]
    fn no_tree_is_too_deep() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = open_dir(CWD, dir.path()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = open_dir(&at, "deeper").unwrap();
        }
        remove(&dir.path().join("deeper")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
