//! Moving files and directories.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use connectrpc::ConnectError;
use rustix::fs::XattrFlags;

use super::dirs;
use super::fault::rpc_error;
use super::remove::remove_tree;
use crate::users::User;

/// Renames `source` to `destination`, whose directories are created as the user's. What is there is replaced, as by
/// `rename(2)`. Where that cannot rename (between file systems, and directories that came with the template) the
/// tree is copied and then removed.
///
/// # Errors
/// `not_found` when there is no source, otherwise as the kernel says.
pub(super) fn rename(source: &Path, destination: &Path, user: &User) -> Result<(), ConnectError> {
    fs::symlink_metadata(source).map_err(|e| rpc_error("moving", source, &e))?;
    if let Some(parent) = destination.parent() {
        ensure_dirs(parent, user)?;
    }
    let moved = match fs::rename(source, destination) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy_over(source, destination),
        other => other,
    };
    moved.map_err(|e| rpc_error(&format!("moving '{}' to", source.display()), destination, &e))
}

/// As [`dirs::ensure`], with the error of an RPC.
pub(super) fn ensure_dirs(path: &Path, user: &User) -> Result<(), ConnectError> {
    dirs::ensure(path, user).map_err(|error| match &error {
        dirs::DirsError::NotADirectory(_) => ConnectError::invalid_argument(error.to_string()),
        dirs::DirsError::Create { path, source } => rpc_error("creating directory", path, source),
    })
}

/// Copies next to the destination, puts the copy in place, then removes the source.
fn copy_over(source: &Path, destination: &Path) -> io::Result<()> {
    let parent = destination.parent().unwrap_or(Path::new("/"));
    let random = hutch_types::Secret::random(8);
    let copy = parent.join(format!(".hutch-move.{}.tmp", random.expose()));
    let copied = copy_tree(source, &copy).and_then(|()| fs::rename(&copy, destination));
    if let Err(error) = copied {
        // The source is still whole; what was copied is not wanted.
        remove_tree(&copy).ok();
        return Err(error);
    }
    remove_tree(source)
}

/// Copies a tree with owners, modes, times, extended attributes of users, and links as links.
fn copy_tree(source: &Path, copy: &Path) -> io::Result<()> {
    let mut todo = vec![PathBuf::new()];
    // Directories get their times and modes last, since filling them changes the one and may need the other.
    let mut directories = Vec::new();
    while let Some(at) = todo.pop() {
        let (from, to) = (join(source, &at), join(copy, &at));
        let found = fs::symlink_metadata(&from)?;
        let kind = found.file_type();
        if kind.is_dir() {
            fs::create_dir(&to)?;
            for entry in fs::read_dir(&from)? {
                todo.push(at.join(entry?.file_name()));
            }
            directories.push((from, to, found));
        } else if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            lchown(&to, Some(found.uid()), Some(found.gid()))?;
        } else if kind.is_file() {
            let mut input = File::open(&from)?;
            let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&to)?;
            io::copy(&mut input, &mut out)?;
            settle(&from, &to, &out, &found)?;
        } else {
            let why = format!("'{}' is neither a file, a directory nor a link", from.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
    }
    for (from, to, found) in directories.iter().rev() {
        settle(from, to, &File::open(to)?, found)?;
    }
    Ok(())
}

/// Joining an empty path would add a slash.
fn join(base: &Path, at: &Path) -> PathBuf {
    if at.as_os_str().is_empty() { base.to_owned() } else { base.join(at) }
}

fn settle(from: &Path, to: &Path, open: &File, found: &fs::Metadata) -> io::Result<()> {
    lchown(to, Some(found.uid()), Some(found.gid()))?;
    open.set_permissions(fs::Permissions::from_mode(found.mode() & 0o7777))?;
    copy_attributes(from, to);
    open.set_times(FileTimes::new().set_accessed(found.accessed()?).set_modified(found.modified()?))
}

/// Copies the attributes of users, as far as both file systems have them.
fn copy_attributes(from: &Path, to: &Path) {
    let mut names = vec![0; 64 << 10];
    let mut value = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::listxattr(from, &mut names[..]) else { return };
    for name in names.get(..length).unwrap_or_default().split(|b| *b == 0) {
        if !name.starts_with(b"user.") {
            continue;
        }
        if let Ok(length) = rustix::fs::getxattr(from, name, &mut value[..]) {
            let value = value.get(..length).unwrap_or_default();
            rustix::fs::setxattr(to, name, value, XattrFlags::empty()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        let home = PathBuf::from("/");
        User { name: "u".into(), uid: 0, gid: 0, groups: vec![], home, shell: String::new(), switch: false }
    }

    #[test]
    fn a_file_moves_into_directories_that_appear() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("a/b/to"));
        fs::write(&from, "x").unwrap();
        rename(&from, &to, &user()).unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read(&to).unwrap(), b"x");
    }

    #[test]
    fn a_missing_source_is_named_and_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let error = rename(&dir.path().join("missing"), &dir.path().join("a/b"), &user()).unwrap_err();
        assert_eq!(error.code.as_str(), "not_found");
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn a_directory_does_not_replace_a_full_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a")).unwrap();
        fs::create_dir_all(dir.path().join("b/full")).unwrap();
        let error = rename(&dir.path().join("a"), &dir.path().join("b"), &user()).unwrap_err();
        assert!(error.message.unwrap().contains("not empty"));
        assert!(dir.path().join("a").exists());
    }

    #[test]
    fn a_copied_tree_is_like_the_original() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "content").unwrap();
        fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        symlink("b/file", from.join("a/link")).unwrap();
        rustix::fs::setxattr(from.join("a/b/file"), "user.e2b.k", b"v", XattrFlags::empty()).unwrap();
        let before = fs::metadata(from.join("a")).unwrap();

        copy_over(&from, &to).unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read(to.join("a/link")).unwrap(), b"content");
        assert!(fs::symlink_metadata(to.join("a/link")).unwrap().is_symlink());
        assert_eq!(fs::metadata(to.join("a/b/file")).unwrap().mode() & 0o7777, 0o4711);
        let after = fs::metadata(to.join("a")).unwrap();
        assert_eq!((after.mode(), after.modified().unwrap()), (before.mode(), before.modified().unwrap()));
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(to.join("a/b/file"), "user.e2b.k", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"v");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
