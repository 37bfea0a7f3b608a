//! The file that an upload goes to.
//!
//! Files are written in place, not to a temporary file that is renamed: whoever watches the directory or holds the
//! file open sees what a program's own write would cause, links are written through, and a file keeps its inode,
//! mode and hard links. What that costs, a half-written file after a failure, is cleared away when the target is
//! dropped before [`Target::commit`].

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::UploadError;
use super::metadata::{self, Metadata};
use crate::filesystem::fault::Fault;
use crate::users::User;

/// Small writes are collected: a small file is one write, so that watchers see one event.
const BUFFER_BYTES: usize = 64 << 10;

/// An open file that is being written.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    file: BufWriter<File>,
    /// Whether the file did not exist before.
    created: bool,
    regular: bool,
    committed: bool,
    written: u64,
}

impl Target {
    /// Opens `path` for writing from its start, creating it (mode 0644, its directories 0755) or emptying it. It
    /// belongs to `user` then. `announced` is how many bytes will come, if that is known: when they cannot fit, the
    /// file is left as it was.
    pub(super) fn open(path: &Path, user: &User, announced: Option<u64>) -> Result<Self, UploadError> {
        if let Some(parent) = path.parent() {
            crate::filesystem::dirs::ensure(parent, user)?;
        }
        let failed = |source: io::Error| match Fault::of(&source) {
            Fault::NoSpace => UploadError::NoSpace { bytes: announced },
            _ if source.raw_os_error() == Some(libc::EISDIR) => UploadError::Directory(path.to_owned()),
            // What the kernel says of a pipe without a reader, or of a socket.
            _ if source.raw_os_error() == Some(libc::ENXIO) => UploadError::NotAFile(path.to_owned()),
            _ => UploadError::Open { path: path.to_owned(), source },
        };
        let (file, created) = open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let kind = found.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
            return Err(UploadError::NotAFile(path.to_owned()));
        }
        let mut target = Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            created,
            regular: kind.is_file(),
            // What was there is not touched before it is clear that the new content may fit.
            committed: !created,
            written: 0,
        };
        if target.regular {
            target.check_space(announced, found.blocks().saturating_mul(512))?;
            target.committed = false;
            target.claim(user, found.len()).map_err(failed)?;
        }
        target.committed = false;
        Ok(target)
    }

    /// Refuses what is larger than the free space and what the old content gives back.
    fn check_space(&self, announced: Option<u64>, reclaimed: u64) -> Result<(), UploadError> {
        let Some(bytes) = announced else { return Ok(()) };
        // A file system that does not count its blocks has no bound that it could tell.
        match rustix::fs::fstatvfs(self.file.get_ref()) {
            Ok(fs) if fs.f_blocks > 0 => {
                let free = fs.f_bavail.saturating_mul(fs.f_frsize).saturating_add(reclaimed);
                if bytes > free { Err(UploadError::NoSpace { bytes: Some(bytes) }) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Makes the file the user's, and empty.
    fn claim(&self, user: &User, size: u64) -> io::Result<()> {
        let file = self.file.get_ref();
        if user.switch {
            match std::os::unix::fs::fchown(file, Some(user.uid), Some(user.gid)) {
                // Virtual files can be written but not given away.
                Err(error) if !self.created && Fault::of(&error) == Fault::Denied => {}
                other => other?,
            }
        }
        if size > 0 { file.set_len(0) } else { Ok(()) }
    }

    /// Writes the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let done = self.file.write_all(bytes);
        self.written = self.written.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        done.map_err(|error| self.failed(error))
    }

    /// Finishes the file and returns the metadata that it has now, and its size.
    pub(super) fn commit(mut self, metadata: &Metadata) -> Result<(Metadata, u64), UploadError> {
        self.file.flush().map_err(|error| self.failed(error))?;
        let file = self.file.get_ref();
        if self.regular {
            metadata::replace(file, metadata).map_err(|error| match Fault::of(&error.into()) {
                Fault::NoSpace => UploadError::NoSpaceForMetadata,
                _ => UploadError::Metadata { path: self.path.clone(), source: error.into() },
            })?;
        }
        let kept = metadata::read_open(file);
        self.committed = true;
        Ok((kept, self.written))
    }

    fn failed(&self, source: io::Error) -> UploadError {
        match Fault::of(&source) {
            Fault::NoSpace => UploadError::NoSpace { bytes: None },
            _ => UploadError::Write { path: self.path.clone(), source },
        }
    }
}

impl Drop for Target {
    /// Gives back the space of a file that did not make it. A full disk would cripple the sandbox, and half a file
    /// looks like a whole one. Nobody is left to tell if that fails.
    fn drop(&mut self) {
        if self.committed || !self.regular {
            return;
        }
        let file = self.file.get_ref();
        file.set_len(0).ok();
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        if self.created
            && let (Ok(own), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(&self.path))
            && same(own, there)
        {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// Opens `path`, first as an existing file. Without `O_CREAT` the kernel does not apply its protection of files of
/// others in directories like `/tmp`, which holds even for root.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    options.write(true).custom_flags(flags.bits().cast_signed());
    match options.open(path) {
        Err(error) if Fault::of(&error) == Fault::Missing => {
            Ok((options.create(true).mode(0o644).open(path)?, true))
        }
        // The kernel refuses to follow links of others in such directories; following them here is the same.
        Err(error) if Fault::of(&error) == Fault::Denied => {
            let real = std::fs::canonicalize(path).map_err(|_| error)?;
            Ok((options.open(real)?, false))
        }
        other => Ok((other?, false)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn user() -> User {
        let home = PathBuf::from("/");
        User {
            name: "u".into(),
            uid: 1234,
            gid: 2345,
            groups: vec![],
            home,
            shell: String::new(),
            switch: false,
        }
    }

    fn put(path: &Path, content: &[u8]) -> Result<u64, UploadError> {
        let mut target = Target::open(path, &user(), None)?;
        target.write(content)?;
        Ok(target.commit(&Metadata::new())?.1)
    }

    #[test]
    fn a_new_file_has_its_content_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/new");
        assert_eq!(put(&path, b"hello").unwrap(), 5);
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn an_existing_file_is_replaced_in_place_and_links_are_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, dead) = (dir.path().join("f"), dir.path().join("l"), dir.path().join("d"));
        std::fs::write(&path, "a long old content").unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        symlink("f", &link).unwrap();
        put(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        symlink("made", &dead).unwrap();
        put(&dead, b"through").unwrap();
        assert_eq!(std::fs::read(dir.path().join("made")).unwrap(), b"through");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(put(dir.path(), b"x"), Err(UploadError::Directory(_))));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(put(&pipe, b"x"), Err(UploadError::NotAFile(_))));
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        assert!(matches!(put(&pipe, b"x"), Err(UploadError::NotAFile(_))));
        std::fs::write(dir.path().join("f"), "").unwrap();
        assert!(matches!(put(&dir.path().join("f/x"), b"x"), Err(UploadError::Dirs(_))));
        assert_eq!(put(Path::new("/dev/null"), b"x").unwrap(), 1);
    }

    #[test]
    fn a_file_that_did_not_make_it_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::write(&old, "old").unwrap();
        for path in [&new, &old] {
            let mut target = Target::open(path, &user(), None).unwrap();
            target.write(&vec![1; BUFFER_BYTES * 2]).unwrap();
        }
        assert!(!new.exists());
        assert_eq!(std::fs::metadata(&old).unwrap().len(), 0);
    }

    #[test]
    fn what_cannot_fit_is_refused_before_anything_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::write(&old, "old").unwrap();
        for path in [&new, &old] {
            let refused = Target::open(path, &user(), Some(1 << 60));
            assert!(matches!(refused, Err(UploadError::NoSpace { bytes: Some(_) })), "{refused:?}");
        }
        assert!(!new.exists());
        assert_eq!(std::fs::read(&old).unwrap(), b"old");
    }
}
