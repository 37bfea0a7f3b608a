//! Writes the entries of an archive beneath a directory, and nowhere else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::config::UidShift;
use crate::error::ImportError;
use crate::import::write_error;
use crate::tarball::{Entry, Kind};

/// Deeper trees exist in no root filesystem, and would make removing them a problem.
const MOST_COMPONENTS: usize = 256;

const MOST_NAME_BYTES: usize = 255;
const MOST_PATH_BYTES: usize = 4095;

/// Unpacks into one tree.
pub(crate) struct Unpacker {
    root: Rc<OwnedFd>,
    shift: UidShift,
    /// The directory of the last entry: most entries are in the same one as their predecessor. It stays valid, since a
    /// directory is never replaced by something else.
    last_parent: Option<(PathBuf, Rc<OwnedFd>)>,
    /// Set at the end: making an entry changes the time of its directory.
    directory_times: BTreeMap<PathBuf, (i64, u32)>,
}

/// A file that is being written.
pub(crate) struct NewFile {
    file: File,
    uid: u32,
    gid: u32,
    len: u64,
    ends_in_hole: bool,
}

impl Unpacker {
    pub(crate) fn new(tree: &Path, shift: UidShift) -> io::Result<Self> {
        let root = rustix::fs::open(tree, DIRECTORY, Mode::empty())?;
        rustix::fs::fchown(&root, Some(Uid::from_raw(shift.base)), Some(Gid::from_raw(shift.base)))?;
        Ok(Self { root: Rc::new(root), shift, last_parent: None, directory_times: BTreeMap::new() })
    }

    /// Makes a regular file; the caller writes its content.
    pub(crate) fn create_file(&mut self, entry: &Entry) -> Result<NewFile, ImportError> {
        let path = self.file_path(entry)?;
        let (uid, gid) = self.owner(entry)?;
        let (parent, name) = self.parent(&path, entry)?;
        self.make_room(parent.as_fd(), name, entry)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&*parent, name, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| failed(entry, e))?;
        Ok(NewFile { file: File::from(fd), uid, gid, len: 0, ends_in_hole: false })
    }

    /// Makes a directory, link or FIFO.
    pub(crate) fn create_other(&mut self, entry: &Entry) -> Result<(), ImportError> {
        if entry.kind == Kind::Directory {
            return self.create_directory(entry);
        }
        let path = self.file_path(entry)?;
        let (uid, gid) = self.owner(entry)?;
        let (parent, name) = self.parent(&path, entry)?;
        match &entry.kind {
            Kind::HardLink { target } => {
                let target = relative(target).map_err(|what| refused(entry, what))?;
                let (target_parent, target_name) = self.parent(&target, entry)?;
                let stat = rustix::fs::statat(&*target_parent, target_name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|_| refused(entry, "the target of the hard link is not in the archive"))?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    return Err(refused(entry, "a hard link to a directory"));
                }
                if path == target {
                    return Ok(());
                }
                self.make_room(parent.as_fd(), name, entry)?;
                return rustix::fs::linkat(&*target_parent, target_name, &*parent, name, AtFlags::empty())
                    .map_err(|e| failed(entry, e));
            }
            Kind::Symlink { target } => {
                if target.len() > MOST_PATH_BYTES || target.contains(&0) {
                    return Err(refused(entry, "the target of the symlink is no path"));
                }
                self.make_room(parent.as_fd(), name, entry)?;
                rustix::fs::symlinkat(OsStr::from_bytes(target), &*parent, name)
                    .map_err(|e| failed(entry, e))?;
            }
            Kind::Fifo => {
                self.make_room(parent.as_fd(), name, entry)?;
                rustix::fs::mknodat(&*parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                    .map_err(|e| failed(entry, e))?;
            }
            Kind::File | Kind::Directory | Kind::Device => return Ok(()),
        }
        let finish = || -> io::Result<()> {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(&*parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            if entry.kind == Kind::Fifo {
                // Nobody but us can have put a symlink here meanwhile: the tree is in a directory of ours.
                rustix::fs::chmodat(&*parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
            }
            rustix::fs::utimensat(&*parent, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(())
        };
        finish().map_err(|e| write_error(entry, e))
    }

    /// Sets the times of directories and makes everything durable.
    pub(crate) fn finish(self) -> io::Result<()> {
        for (path, mtime) in &self.directory_times {
            let directory = self.open_beneath(path)?;
            rustix::fs::futimens(&directory, &times(*mtime))?;
        }
        Ok(rustix::fs::syncfs(&*self.root)?)
    }

    fn create_directory(&mut self, entry: &Entry) -> Result<(), ImportError> {
        let path = relative(&entry.path).map_err(|what| refused(entry, what))?;
        let (uid, gid) = self.owner(entry)?;
        let directory = if path.as_os_str().is_empty() {
            Rc::clone(&self.root)
        } else {
            let (parent, name) = self.parent(&path, entry)?;
            match rustix::fs::mkdirat(&*parent, name, Mode::from_raw_mode(0o700)) {
                Ok(()) => {}
                Err(Errno::EXIST) => {
                    let stat = rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(|e| failed(entry, e))?;
                    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                        self.make_room(parent.as_fd(), name, entry)?;
                        rustix::fs::mkdirat(&*parent, name, Mode::from_raw_mode(0o700))
                            .map_err(|e| failed(entry, e))?;
                    }
                }
                Err(error) => return Err(failed(entry, error)),
            }
            let flags = DIRECTORY | OFlags::NOFOLLOW;
            Rc::new(rustix::fs::openat(&*parent, name, flags, Mode::empty()).map_err(|e| failed(entry, e))?)
        };
        let finish = || -> io::Result<()> {
            rustix::fs::fchown(&*directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            rustix::fs::fchmod(&*directory, Mode::from_raw_mode(entry.mode))?;
            set_xattrs(directory.as_fd(), entry)
        };
        finish().map_err(|e| write_error(entry, e))?;
        self.directory_times.insert(path.clone(), entry.mtime);
        self.last_parent = Some((path, directory));
        Ok(())
    }

    /// A later entry of the same name replaces an earlier one, unless that is a directory.
    fn make_room(&self, parent: BorrowedFd<'_>, name: &OsStr, entry: &Entry) -> Result<(), ImportError> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => Err(refused(entry, "it would replace a directory")),
            Err(error) => Err(failed(entry, error)),
        }
    }

    fn owner(&self, entry: &Entry) -> Result<(u32, u32), ImportError> {
        self.shift
            .to_host(entry.uid)
            .zip(self.shift.to_host(entry.gid))
            .ok_or_else(|| refused(entry, "its owner is outside the mapped range"))
    }

    fn file_path(&self, entry: &Entry) -> Result<PathBuf, ImportError> {
        let path = relative(&entry.path).map_err(|what| refused(entry, what))?;
        if path.as_os_str().is_empty() {
            return Err(refused(entry, "it would replace the root directory"));
        }
        Ok(path)
    }

    /// The directory that `path` is in, made when missing, and its last component.
    fn parent<'p>(&mut self, path: &'p Path, entry: &Entry) -> Result<(Rc<OwnedFd>, &'p OsStr), ImportError> {
        let name = path.file_name().ok_or_else(|| refused(entry, "its path has no name"))?;
        let parent = path.parent().unwrap_or(Path::new(""));
        if parent.as_os_str().is_empty() {
            return Ok((Rc::clone(&self.root), name));
        }
        if let Some((last, fd)) = &self.last_parent
            && last == parent
        {
            return Ok((Rc::clone(fd), name));
        }
        let fd = match self.open_beneath(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_parents(parent).and_then(|()| self.open_beneath(parent))
            }
            other => other,
        };
        let fd = fd.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                refused(entry, "its path leads through something that is not a directory")
            }
            _ => write_error(entry, error),
        })?;
        let fd = Rc::new(fd);
        self.last_parent = Some((parent.to_owned(), Rc::clone(&fd)));
        Ok((fd, name))
    }

    fn open_beneath(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(&*self.root, path, DIRECTORY, Mode::empty(), resolve) {
                // A rename somewhere on the host made the kernel unsure.
                Err(Errno::AGAIN) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Directories that the archive left out belong to root and have mode 0755.
    fn make_parents(&self, path: &Path) -> io::Result<()> {
        let mut fd = Rc::clone(&self.root);
        for name in path.iter() {
            match rustix::fs::mkdirat(&*fd, name, Mode::from_raw_mode(0o700)) {
                Ok(()) => {
                    let new = rustix::fs::openat(&*fd, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
                    let base = self.shift.base;
                    rustix::fs::fchown(&new, Some(Uid::from_raw(base)), Some(Gid::from_raw(base)))?;
                    rustix::fs::fchmod(&new, Mode::from_raw_mode(0o755))?;
                    fd = Rc::new(new);
                }
                Err(Errno::EXIST) => {
                    fd =
                        Rc::new(rustix::fs::openat(&*fd, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl NewFile {
    /// Appends content; blocks of zeros become holes.
    pub(crate) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.len += chunk.len() as u64;
        self.ends_in_hole = chunk.len() >= 4096 && chunk.iter().all(|b| *b == 0);
        if self.ends_in_hole {
            rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(self.len))?;
            return Ok(());
        }
        self.file.write_all(chunk)
    }

    /// Sets everything but the content. The mode comes after the owner, since changing the owner clears setuid bits.
    pub(crate) fn finish(self, entry: &Entry) -> io::Result<()> {
        if self.ends_in_hole {
            self.file.set_len(self.len)?;
        }
        rustix::fs::fchown(&self.file, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))?;
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(entry.mode))?;
        set_xattrs(self.file.as_fd(), entry)?;
        Ok(rustix::fs::futimens(&self.file, &times(entry.mtime))?)
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn set_xattrs(fd: BorrowedFd<'_>, entry: &Entry) -> io::Result<()> {
    for (name, value) in &entry.xattrs {
        rustix::fs::fsetxattr(fd, OsStr::from_bytes(name), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// A path of an archive, relative to the tree's root: without `.` components and slashes at the end. Empty for the
/// root itself.
fn relative(path: &[u8]) -> Result<PathBuf, &'static str> {
    if path.is_empty() || path.contains(&0) {
        return Err("its path is empty or has a NUL");
    }
    if path.starts_with(b"/") {
        return Err("its path is absolute");
    }
    let mut clean = PathBuf::new();
    let mut components = 0;
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err("its path has a .. component"),
            name if name.len() > MOST_NAME_BYTES => return Err("a component of its path is too long"),
            name => clean.push(OsStr::from_bytes(name)),
        }
        components += 1;
    }
    if components > MOST_COMPONENTS || clean.as_os_str().len() > MOST_PATH_BYTES {
        return Err("its path is too long");
    }
    Ok(clean)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn refused(entry: &Entry, what: &'static str) -> ImportError {
    ImportError::Refused { entry: String::from_utf8_lossy(&entry.path).into_owned(), what }
}

fn failed(entry: &Entry, errno: Errno) -> ImportError {
    write_error(entry, errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_and_clean_or_refused() {
        assert_eq!(relative(b"./usr//bin/./x/"), Ok(PathBuf::from("usr/bin/x")));
        assert_eq!(relative(b"./"), Ok(PathBuf::new()));
        for bad in [&b""[..], b"/etc/passwd", b"../x", b"a/../../x", b"a/..", b"a\0b", &[b'x'; 300]] {
            assert!(relative(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
        assert!(relative("a/".repeat(300).as_bytes()).is_err());
    }
}
