//! What has to be done inside an instance's namespaces, on threads of its own that end afterwards.
//!
//! A thread keeps the credentials of the host's root, which has every capability in a user namespace below its own. It
//! never enters the instance's user namespace. Files inside are the guest's: paths are resolved without symlinks, and
//! what they lead to is checked.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hutch_disk::UidShift;
use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};
use tokio::sync::oneshot;

use crate::lxcfs::View;
use crate::pid1::Pid1;

/// These take well below a millisecond.
const LIMIT: Duration = Duration::from_secs(5);

/// `TMPFS_MAGIC`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// `SYSFS_MAGIC`.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

/// `FUSE_SUPER_MAGIC`.
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// Files of former lxcfs that lie above one another; there is one unless something went wrong.
const MOST_FORMER: usize = 4;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file in the guest's /dev that is mounted over [`BOOT_ID`]. It lies in a filesystem of the instance's own, so that a
/// memory snapshot of the instance would contain it.
const BOOT_ID_FILE: &str = ".boot_id";

/// Sets the host name.
pub(crate) async fn set_hostname(pid1: &Pid1, name: &str) -> io::Result<()> {
    let (pidfd, name) = (pid1.fd().try_clone_to_owned()?, name.to_owned());
    on_own_thread("hutch-hostname", move || {
        move_into_thread_name_spaces(pidfd.as_fd(), ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME)?;
        Ok(rustix::system::sethostname(name.as_bytes())?)
    })
    .await
}

/// Gives the instance a boot id of its own: the kernel has one for all, by which a guest could tell on which host it is. And
/// mounts `views`, on the same way; that this fails is logged alone.
pub(crate) async fn set_boot_id(
    pid1: &Pid1,
    shift: UidShift,
    boot_id: uuid::Uuid,
    views: Arc<Vec<View>>,
) -> io::Result<()> {
    let pidfd = pid1.fd().try_clone_to_owned()?;
    on_own_thread("hutch-boot-id", move || {
        let detached = detach(&views);
        // SAFETY: only the current directory, root and umask are unshared, of this thread alone; no descriptors are.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        move_into_thread_name_spaces(pidfd.as_fd(), ThreadNameSpaceType::MOUNT)?;
        act_on_files_as(shift.base)?;
        let file = make_file(&format!("{boot_id}\n"))?;
        let tree = open_tree(
            &file,
            c"",
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
        )?;
        let target =
            openat2(CWD, BOOT_ID, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        require_filesystem(&target, PROC_SUPER_MAGIC, BOOT_ID)?;
        mount_on(&tree, &target)?;
        if let Err(error) = detached.and_then(mount_detached) {
            tracing::warn!(%error, "lxcfs could not be mounted in an instance");
        }
        Ok(())
    })
    .await
}

/// Mounts files of lxcfs over the kernel's, in place of those of a former lxcfs.
pub(crate) async fn mount_views(pid1: &Pid1, views: Arc<Vec<View>>) -> io::Result<()> {
    let pidfd = pid1.fd().try_clone_to_owned()?;
    on_own_thread("hutch-views", move || {
        let detached = detach(&views)?;
        // SAFETY: only the current directory, root and umask are unshared, of this thread alone; no descriptors are.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        move_into_thread_name_spaces(pidfd.as_fd(), ThreadNameSpaceType::MOUNT)?;
        mount_detached(detached)
    })
    .await
}

/// Unmounts what [`mount_views`] mounted: a filesystem of another process cannot be saved with the instance.
pub(crate) async fn unmount_views(pid1: &Pid1, targets: Vec<&'static CStr>) -> io::Result<()> {
    let pidfd = pid1.fd().try_clone_to_owned()?;
    on_own_thread("hutch-views", move || {
        // SAFETY: only the current directory, root and umask are unshared, of this thread alone; no descriptors are.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        move_into_thread_name_spaces(pidfd.as_fd(), ThreadNameSpaceType::MOUNT)?;
        targets.into_iter().try_for_each(|path| match kernels_own(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    })
    .await
}

/// Mounts of the host's files have to be made while the thread is still in the host's mount namespace.
fn detach(views: &[View]) -> io::Result<Vec<(OwnedFd, &'static CStr)>> {
    views.iter().map(|view| Ok((view.detached()?, view.target))).collect()
}

fn mount_detached(detached: Vec<(OwnedFd, &'static CStr)>) -> io::Result<()> {
    for (tree, path) in detached {
        mount_on(&tree, &kernels_own(path)?)?;
    }
    Ok(())
}

/// The kernel's file at `path`, after unmounting whatever lxcfs has been mounted over it. The directories above it are the
/// kernel's, where guests can make neither files nor symlinks, and guests may not mount.
fn kernels_own(path: &'static CStr) -> io::Result<OwnedFd> {
    for _ in 0..MOST_FORMER {
        let found =
            openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        match fstatfs(&found).map(|is| is.f_type) {
            Ok(PROC_SUPER_MAGIC | SYSFS_MAGIC) => return Ok(found),
            // The second is what files of a dead lxcfs answer.
            Ok(FUSE_SUPER_MAGIC) | Err(Errno::NOTCONN) => {
                unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
            }
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("{} inside is not the kernel's", path.to_string_lossy())))
}

fn mount_on(tree: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let both_are_descriptors =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, c"", target, c"", both_are_descriptors)?)
}

/// Makes the file in /dev and opens it for reading.
fn make_file(content: &str) -> io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dev = openat2(CWD, "/dev", directory, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    require_filesystem(&dev, TMPFS_MAGIC, "/dev")?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&dev, BOOT_ID_FILE, flags, Mode::from_raw_mode(0o444))?);
    file.write_all(content.as_bytes())?;
    Ok(file.into())
}

fn require_filesystem(fd: &OwnedFd, magic: rustix::fs::FsWord, path: &str) -> io::Result<()> {
    if fstatfs(fd)?.f_type == magic {
        return Ok(());
    }
    Err(io::Error::other(format!("{path} inside is not what runc mounts there")))
}

/// Makes this thread create files as the guest's root: its filesystems only take owners that are mapped. The capability to
/// mount is kept.
fn act_on_files_as(id: u32) -> io::Result<()> {
    // SAFETY: both calls take plain numbers and change the calling thread alone.
    let ids = unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
        // They do not report errors; what is set now is what a call with an id that does not exist answers.
        (libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX))
    };
    let wanted = libc::c_int::try_from(id).map_err(io::Error::other)?;
    if ids == (wanted, wanted) {
        Ok(())
    } else {
        Err(io::Error::other("could not change the filesystem ids"))
    }
}

/// Runs `work` on a new thread, since it moves the thread to other namespaces for good.
async fn on_own_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tx, rx) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024).spawn(move || {
        // Nobody listens any more when the deadline has passed.
        drop(tx.send(work()));
    })?;
    match tokio::time::timeout(LIMIT, rx).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(io::Error::other(format!("the thread {name} died"))),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_is_an_error() {
        let result: io::Result<()> = on_own_thread("panics", || panic!("on purpose")).await;
        assert!(result.unwrap_err().to_string().contains("panics"));
    }
}
