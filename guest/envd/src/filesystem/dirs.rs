//! Directories on the way to something.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::users::User;

/// Why a directory cannot be made to exist.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirsError {
    /// There is something else.
    #[error("'{0}' exists but is not a directory")]
    NotADirectory(PathBuf),
    /// The kernel refuses.
    #[error("creating directory '{path}'")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Makes sure that `path` is a directory (links followed). What is missing is created with mode 0755 and belongs to
/// `user`; what is there is left alone. Safe against others who create the same directories meanwhile.
pub(crate) fn ensure(path: &Path, user: &User) -> Result<(), DirsError> {
    let failed = |at: &Path, source| DirsError::Create { path: at.to_owned(), source };
    let mut missing = Vec::new();
    for at in path.ancestors() {
        match std::fs::metadata(at) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(DirsError::NotADirectory(at.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(at),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(failed(at, error)),
        }
    }
    for at in missing.into_iter().rev() {
        match std::fs::DirBuilder::new().mode(0o755).create(at) {
            Ok(()) => {}
            // Someone else was faster and may not have come to change the owner yet; that is done twice then.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !std::fs::metadata(at).is_ok_and(|m| m.is_dir()) {
                    return Err(DirsError::NotADirectory(at.to_owned()));
                }
            }
            Err(error) => return Err(failed(at, error)),
        }
        if user.switch {
            std::os::unix::fs::lchown(at, Some(user.uid), Some(user.gid)).map_err(|e| failed(at, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn user(switch: bool) -> User {
        let home = PathBuf::from("/");
        User {
            name: "u".into(),
            uid: 1234,
            gid: 2345,
            groups: vec![2345],
            home,
            shell: String::new(),
            switch,
        }
    }

    #[test]
    fn missing_directories_appear_and_belong_to_the_user() {
        let dir = tempfile::tempdir().unwrap();
        // Only root can give files away; anyone else checks all but the owner.
        let switch = rustix::process::geteuid().is_root();
        let deep = dir.path().join("a/b/c");
        ensure(&deep, &user(switch)).unwrap();
        ensure(&deep, &user(switch)).unwrap();
        for at in ["a", "a/b", "a/b/c"] {
            let made = std::fs::metadata(dir.path().join(at)).unwrap();
            assert_eq!(made.permissions().mode() & 0o777, 0o755);
            if switch {
                assert_eq!((made.uid(), made.gid()), (1234, 2345));
            }
        }
        assert_ne!(std::fs::metadata(dir.path()).unwrap().uid(), 1234);
    }

    #[test]
    fn files_and_dead_links_on_the_way_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        symlink("nowhere", dir.path().join("dead")).unwrap();
        symlink(".", dir.path().join("alive")).unwrap();
        for (path, culprit) in [("file/x/y", "file"), ("file", "file"), ("dead/x", "dead")] {
            match ensure(&dir.path().join(path), &user(false)) {
                Err(DirsError::NotADirectory(at)) => assert_eq!(at, dir.path().join(culprit)),
                other => panic!("{path}: {other:?}"),
            }
        }
        ensure(&dir.path().join("alive/x"), &user(false)).unwrap();
        assert!(dir.path().join("x").is_dir());
    }
}
