//! How paths in requests are understood.

use std::path::{Component, Path, PathBuf};

use crate::state::State;
use crate::users::User;

/// A path that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// `~name`: the home of a user other than the one who asks.
    #[error("failed to expand path '{path}' for user '{user}': cannot expand user-specific home dir")]
    OtherHome {
        /// As sent.
        path: String,
        /// Who asks.
        user: String,
    },
    /// A NUL byte.
    #[error("the path contains a NUL byte")]
    Nul,
}

/// Resolves `path` as sent by a client: empty is the default working directory, else the home; `~` and `~/…` are in
/// the home; relative is in the home; absolute stays as it is, uncleaned. Touches no file.
///
/// # Errors
/// See [`PathError`].
pub fn resolve(user: &User, state: &State, path: &str) -> Result<PathBuf, PathError> {
    expand(user, state.default_workdir().as_deref(), path)
}

fn expand(user: &User, workdir: Option<&Path>, path: &str) -> Result<PathBuf, PathError> {
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    let inside = match (path, path.strip_prefix('~')) {
        ("", _) => return Ok(workdir.unwrap_or(&user.home).to_owned()),
        (_, Some(rest)) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        (_, Some(_)) => return Err(PathError::OtherHome { path: path.to_owned(), user: user.name.clone() }),
        (_, None) if path.starts_with('/') => return Ok(path.into()),
        (_, None) => path,
    };
    Ok(clean(&user.home.join(inside)))
}

/// Removes `.`, `..` and repeated slashes of an absolute path without looking at the file system.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "user".to_owned(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/user".into(),
            shell: "/bin/sh".to_owned(),
            switch: true,
        }
    }

    #[test]
    fn paths_resolve_as_sdks_expect() {
        let check = |path: &str, want: &str| {
            assert_eq!(expand(&user(), None, path), Ok(PathBuf::from(want)), "{path}");
        };
        check("", "/home/user");
        check("~", "/home/user");
        check("~/", "/home/user");
        check("~//etc", "/home/user/etc");
        check("~/a b", "/home/user/a b");
        check("a/../b//c/.", "/home/user/b/c");
        check("../../../../x", "/x");
        check("/", "/");
        check("/tmp//x/../.", "/tmp//x/../.");
    }

    #[test]
    fn an_empty_path_is_the_working_directory_but_relative_ones_are_in_the_home() {
        let work = Some(Path::new("/code"));
        assert_eq!(expand(&user(), work, ""), Ok(PathBuf::from("/code")));
        assert_eq!(expand(&user(), work, "a"), Ok(PathBuf::from("/home/user/a")));
    }

    #[test]
    fn the_homes_of_others_and_nul_bytes_are_refused() {
        for path in ["~root", "~root/x", "~~"] {
            let error = PathError::OtherHome { path: path.to_owned(), user: "user".to_owned() };
            assert_eq!(expand(&user(), None, path), Err(error));
        }
        assert_eq!(expand(&user(), None, "/tmp/\0"), Err(PathError::Nul));
    }
}
