//! Mounting, unmounting, and what is mounted.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// How long a mount may stay busy before it is only taken out of the tree.
const BUSY_LIMIT: Duration = Duration::from_millis(500);

/// Mount options are handed over in one page.
const MOST_OPTION_BYTES: usize = 4000;

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Device number.
    pub device: u64,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Filesystem type.
    pub kind: String,
    /// Whether mounts below it appear in other mount namespaces.
    pub is_shared: bool,
}

/// Everything that is mounted, oldest first.
pub(crate) fn list() -> io::Result<Vec<Mount>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// Everything mounted at or below `dir`, oldest first.
pub(crate) fn below(dir: &Path) -> io::Result<Vec<Mount>> {
    Ok(list()?.into_iter().filter(|m| m.target.starts_with(dir)).collect())
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let target = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(1)?)));
    fields.next()?;
    let mut is_shared = false;
    for optional in fields.by_ref().take_while(|f| *f != b"-") {
        is_shared |= optional.starts_with(b"shared:");
    }
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount { device, target, kind, is_shared })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'\\')
            .then(|| tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()))
            .flatten()
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Makes `dir` a mount of its own whose mounts stay in this mount namespace. Does nothing when it is one already.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    let mounted = list()?.into_iter().rfind(|m| m.target == dir);
    if mounted.is_none() {
        rustix::mount::mount_bind(dir, dir)?;
    }
    if mounted.is_none_or(|m| m.is_shared) {
        rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE)?;
    }
    Ok(())
}

/// Undoes [`make_private`]. Fails while something is mounted inside.
pub(crate) fn unmount_private(dir: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW)?)
}

/// Mounts an ext4 image's loop device. Unused inode tables are not written out in the background: that would fill the
/// sparse image. Freed blocks go back to the host.
pub(crate) fn mount_ext4(device: &Path, target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOATIME | MountFlags::NODEV;
    Ok(rustix::mount::mount(device, target, "ext4", flags, c"noinit_itable,discard")?)
}

/// Mounts an overlay of `lowers` (lowest first) under `upper`.
///
/// `redirect_dir=on` lets directories of the layers be renamed as on an ordinary filesystem. Its marks are `trusted.*`
/// attributes, which no sandbox can write and imports drop.
pub(crate) fn mount_overlay(lowers: &[PathBuf], upper: &Path, work: &Path, target: &Path) -> io::Result<()> {
    let mut options = b"index=off,metacopy=off,xino=off,redirect_dir=on,lowerdir=".to_vec();
    for (n, lower) in lowers.iter().rev().enumerate() {
        if n > 0 {
            options.push(b':');
        }
        escape_into(lower, &mut options);
    }
    for (key, path) in [(&b",upperdir="[..], upper), (b",workdir=", work)] {
        options.extend_from_slice(key);
        escape_into(path, &mut options);
    }
    if options.len() > MOST_OPTION_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many layers for one mount"));
    }
    let options = CString::new(options)?;
    let flags = MountFlags::NOATIME | MountFlags::NODEV;
    Ok(rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str())?)
}

/// Overlay's own option parser takes a backslash before the characters that separate options and layers.
fn escape_into(path: &Path, out: &mut Vec<u8>) {
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b':' | b',') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
}

/// Unmounts everything at `target`. What stays busy is taken out of the tree, and ends when its last user does.
/// Returns how many mounts there were.
pub(crate) fn unmount(target: &Path) -> io::Result<usize> {
    let deadline = Instant::now() + BUSY_LIMIT;
    let mut pause = Duration::from_micros(500);
    let mut count = 0;
    loop {
        match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => count += 1,
            // Not a mount point, or not there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(count),
            Err(Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            Err(Errno::BUSY) => {
                tracing::warn!(target = %target.display(), "mount is busy, detaching it");
                rustix::mount::unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                count += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_understood() {
        let line = br"36 35 7:3 / /run/hutch/a\040b/n1/mnt rw,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        let mount = parse(line).expect("parses");
        assert_eq!(mount.target, Path::new("/run/hutch/a b/n1/mnt"));
        assert_eq!(mount.kind, "ext4");
        assert_eq!(mount.device, rustix::fs::makedev(7, 3));
        assert!(mount.is_shared);
        let line = b"36 35 0:40 / /x rw - overlay overlay rw";
        assert!(!parse(line).expect("parses").is_shared);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 7 / /x rw - ext4 a b"), None);
    }

    #[test]
    fn escapes_are_undone_and_stray_backslashes_kept() {
        assert_eq!(unescape(br"a\134b\040c\zd\"), br"a\b c\zd\");
    }

    #[test]
    fn separators_in_paths_are_escaped() {
        let mut out = Vec::new();
        escape_into(Path::new(r"/a:b,c\d"), &mut out);
        assert_eq!(out, br"/a\:b\,c\\d");
    }

    #[test]
    fn unmounting_what_is_not_mounted_is_no_error() {
        let dir = tempfile::tempdir().expect("tempdir");
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: mounts: not root");
            return;
        }
        assert_eq!(unmount(dir.path()).expect("fine"), 0);
        assert_eq!(unmount(&dir.path().join("missing")).expect("fine"), 0);
    }
}
