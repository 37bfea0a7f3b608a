//! ext4 images: formatting, copying, giving up.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode};

use crate::exec;
use crate::loopdev;

/// Part of a template's file name: it changes whenever the options below do.
pub(crate) const FORMAT: &str = "ext4-1";

/// The features are listed one by one, since the defaults differ between versions of mkfs and a newer one's defaults
/// need not be known to the running kernel.
const FEATURES: &str = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,large_file,huge_file,\
                        dir_nlink,extra_isize,metadata_csum";

/// Where `mkfs.ext4` is looked for; the daemon's own path need not have the `sbin` directories.
pub(crate) const MKFS_PATH: &str = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin";

const MKFS_DEADLINE: Duration = Duration::from_secs(120);

const EXT4_IOC_SHUTDOWN: Opcode = 0x8004_587D;
const SHUTDOWN_WITHOUT_FLUSH: u32 = 2;

/// Formats a sparse file of `mib` MiB at `path`. Inode tables and journal stay holes: 10 GiB cost about 1 MiB.
pub(crate) fn format(path: &Path, mib: u32) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_len(u64::from(mib) * 1024 * 1024)?;
    let mut command = Command::new("mkfs.ext4");
    command
        .env("PATH", MKFS_PATH)
        .args(["-q", "-F", "-b", "4096", "-m", "0", "-i", "16384", "-J", "size=4", "-O", FEATURES])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
        .arg(path);
    exec::run(&mut command, MKFS_DEADLINE)?;
    file.sync_all()
}

/// Copies a sparse file: by reference where the filesystem can, else only what is not a hole.
pub(crate) fn copy_sparse(from: &Path, to: &Path) -> io::Result<File> {
    let source = File::open(from)?;
    let target = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(target);
    }
    let len = source.metadata()?.len();
    target.set_len(len)?;
    let mut position = 0;
    while position < len {
        let start = match rustix::fs::seek(&source, SeekFrom::Data(position)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        position = rustix::fs::seek(&source, SeekFrom::Hole(start))?;
        copy_range(&source, &target, start, position)?;
    }
    Ok(target)
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let want = usize::try_from(end - read_at).unwrap_or(usize::MAX);
        let done =
            rustix::fs::copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), want)?;
        if done == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Makes the filesystem mounted at `mount` forget what it has not written yet, so that unmounting a disk that is about
/// to be deleted writes nothing. Does nothing unless `mount` is the mount of a loop device with exactly `image`
/// behind it: the same request on the host's own filesystem would stop the host.
pub(crate) fn abandon(mount: &Path, image: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd: OwnedFd = match rustix::fs::open(mount, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let device = File::from(fd.try_clone()?).metadata()?.dev();
    if !is_backed_by(device, image) {
        return Ok(());
    }
    // SAFETY: the request reads one `u32`.
    match unsafe { ioctl::ioctl(&fd, ioctl::Setter::<EXT4_IOC_SHUTDOWN, u32>::new(SHUTDOWN_WITHOUT_FLUSH)) } {
        // Shut down already, by an earlier attempt.
        Ok(()) | Err(Errno::IO) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether device number `device` is a loop device with `image` behind it.
pub(crate) fn is_backed_by(device: u64, image: &Path) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    major == loopdev::LOOP_MAJOR
        && loopdev::backing_file(minor).is_some_and(|file| {
            let real = fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
            Path::new(file.strip_suffix(" (deleted)").unwrap_or(&file)) == real
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_sparse_copy_has_the_same_bytes_and_the_same_holes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        let file = File::create(&from).expect("create");
        file.set_len(64 << 20).expect("len");
        file.write_all_at(b"start", 0).expect("write");
        file.write_all_at(b"middle", (32 << 20) + 5).expect("write");
        drop(copy_sparse(&from, &to).expect("copy"));
        let meta = fs::metadata(&to).expect("meta");
        assert_eq!(meta.len(), 64 << 20);
        assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
        assert!(fs::read(&from).expect("read") == fs::read(&to).expect("read"));
    }

    #[test]
    fn a_directory_of_the_hosts_own_filesystem_is_left_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        abandon(dir.path(), &dir.path().join("disk.img")).expect("no error");
        fs::write(dir.path().join("still"), "writable").expect("the host's filesystem works");
    }

    #[test]
    fn a_device_that_is_no_loop_device_is_not_ours() {
        assert!(!is_backed_by(rustix::fs::makedev(254, 0), Path::new("/")));
        assert!(!is_backed_by(rustix::fs::makedev(7, 9999), Path::new("/")));
    }
}
