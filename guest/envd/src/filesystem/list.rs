//! Listing directories.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use connectrpc::ConnectError;
use hutch_proto::filesystem::EntryInfo;

use super::entry::{Names, describe};
use super::fault::{Fault, rpc_error};

/// A listing with more entries than this is refused: the answer is built in the sandbox's memory.
const MAX_ENTRIES: usize = 100_000;

/// The entries below `path`, `depth` levels deep, each directory before what is in it, names in byte order. `path`
/// itself may be a link and is followed, but entries are reported below it as it was given; links inside are not
/// followed. What vanishes meanwhile is left out.
///
/// # Errors
/// `not_found`, `invalid_argument` when it is no directory, `failed_precondition` when links go in circles or there
/// are too many entries.
pub(super) fn list(path: &Path, depth: u32) -> Result<Vec<EntryInfo>, ConnectError> {
    let attempt = "listing directory";
    let root = std::fs::canonicalize(path).map_err(|e| rpc_error(attempt, path, &e))?;
    let found = std::fs::metadata(&root).map_err(|e| rpc_error(attempt, path, &e))?;
    if !found.is_dir() {
        return Err(ConnectError::invalid_argument(format!("path is not a directory: {}", path.display())));
    }
    let mut walk = Walk { root: &root, shown: path, entries: Vec::new(), names: Names::default() };
    walk.run(depth.max(1))?;
    Ok(walk.entries)
}

struct Walk<'a> {
    /// Where the directory really is.
    root: &'a Path,
    /// Where it is said to be.
    shown: &'a Path,
    entries: Vec<EntryInfo>,
    names: Names,
}

impl Walk<'_> {
    fn run(&mut self, depth: u32) -> Result<(), ConnectError> {
        // Names still to be visited, per level, last first: no recursion, so that no tree is too deep.
        let mut levels: Vec<Vec<OsString>> = vec![self.names_in(Path::new(""), 0)?];
        let mut at = PathBuf::new();
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.pop() else {
                levels.pop();
                at.pop();
                continue;
            };
            at.push(&name);
            let is_dir = self.visit(&at)?;
            if is_dir && u32::try_from(levels.len()).is_ok_and(|level| level < depth) {
                let waiting = levels.iter().map(Vec::len).sum();
                levels.push(self.names_in(&at, waiting)?);
            } else {
                at.pop();
            }
        }
        Ok(())
    }

    /// Adds an entry and says whether it is a directory itself, not a link to one.
    fn visit(&mut self, at: &Path) -> Result<bool, ConnectError> {
        let path = self.root.join(at);
        let mut entry = match describe(&path, &mut self.names) {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) => return Err(rpc_error("describing", &path, &error)),
        };
        entry.path = self.shown.join(at).to_string_lossy().into_owned();
        let is_dir = entry.permissions.starts_with('d');
        self.entries.push(entry);
        Ok(is_dir)
    }

    /// The names in a directory, last first. `waiting` names of other directories are still to be visited.
    fn names_in(&self, at: &Path, waiting: usize) -> Result<Vec<OsString>, ConnectError> {
        let path = self.root.join(at);
        let room = MAX_ENTRIES.saturating_sub(self.entries.len() + waiting);
        let read = || -> io::Result<Vec<OsString>> {
            std::fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name())).take(room + 1).collect()
        };
        match read() {
            Ok(names) if names.len() > room => {
                let shown = self.shown.display();
                Err(ConnectError::failed_precondition(format!(
                    "'{shown}' has more than {MAX_ENTRIES} entries: list a smaller part of it, or fewer levels"
                )))
            }
            Ok(mut names) => {
                names.sort_unstable_by(|a, b| b.cmp(a));
                Ok(names)
            }
            Err(error) if is_gone(&error) && !at.as_os_str().is_empty() => Ok(Vec::new()),
            Err(error) => Err(rpc_error("reading directory", &path, &error)),
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(Fault::of(error), Fault::Missing | Fault::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(path: &Path, depth: u32) -> Vec<String> {
        list(path, depth).unwrap().into_iter().map(|e| e.name).collect()
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["subdir1/subdir1_1", "subdir1/subdir1_2", "subdir2/subdir2_1"] {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        fs::write(dir.path().join("file1.txt"), "x").unwrap();
        dir
    }

    #[test]
    fn a_directory_comes_before_what_is_in_it_and_names_are_in_order() {
        let dir = tree();
        let one = ["file1.txt", "subdir1", "subdir2"];
        let two = ["file1.txt", "subdir1", "subdir1_1", "subdir1_2", "subdir2", "subdir2_1"];
        assert_eq!(names(dir.path(), 0), one);
        assert_eq!(names(dir.path(), 1), one);
        assert_eq!(names(dir.path(), 2), two);
        assert_eq!(names(dir.path(), u32::MAX), two);
    }

    #[test]
    fn a_link_to_a_directory_is_listed_under_its_own_name_but_links_inside_are_not_followed() {
        let dir = tree();
        symlink("subdir1", dir.path().join("way")).unwrap();
        symlink("..", dir.path().join("subdir1/up")).unwrap();
        let way = dir.path().join("way");
        let entries = list(&way, 5).unwrap();
        let paths: Vec<&str> = entries.iter().map(|e| e.path.as_str()).collect();
        let want: Vec<_> = ["subdir1_1", "subdir1_2", "up"].iter().map(|n| way.join(n)).collect();
        assert_eq!(paths, want.iter().map(|p| p.to_str().unwrap()).collect::<Vec<_>>());
        assert!(entries[2].symlink_target.is_some());
    }

    #[test]
    fn a_listing_that_would_not_fit_into_memory_is_refused() {
        let dir = tree();
        let mut walk =
            Walk { root: dir.path(), shown: dir.path(), entries: Vec::new(), names: Names::default() };
        assert_eq!(walk.names_in(Path::new(""), MAX_ENTRIES - 3).unwrap().len(), 3);
        let error = walk.names_in(Path::new(""), MAX_ENTRIES - 2).unwrap_err();
        assert_eq!(error.code.as_str(), "failed_precondition");
        walk.entries = vec![EntryInfo::default(); MAX_ENTRIES - 5];
        assert_eq!(walk.run(9).unwrap_err().code.as_str(), "failed_precondition");
    }

    #[test]
    fn what_cannot_be_listed_says_why() {
        let dir = tree();
        symlink("round", dir.path().join("round")).unwrap();
        let code = |name: &str| list(&dir.path().join(name), 1).unwrap_err().code.as_str();
        assert_eq!(code("missing"), "not_found");
        assert_eq!(code("file1.txt"), "invalid_argument");
        assert_eq!(code("file1.txt/x"), "invalid_argument");
        assert_eq!(code("round"), "failed_precondition");
    }
}
