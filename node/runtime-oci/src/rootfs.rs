//! Files that the host puts on an instance's root filesystem before it starts.
//!
//! The filesystem comes from whoever made the template: `/etc` or the file may be a symlink to anywhere. So the directory is
//! resolved with the filesystem's root as the root, and the file is made anew in it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::Path;

use hutch_disk::UidShift;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, open, openat, openat2, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Writes `/etc/resolv.conf`. The guest may change it afterwards.
pub(crate) fn write_resolv_conf(root: &Path, content: &str, shift: UidShift) -> io::Result<()> {
    let root = open(root, DIRECTORY, Mode::empty())?;
    let open_etc = || openat2(&root, "etc", DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT);
    let etc = match open_etc() {
        Err(Errno::NOENT) => {
            mkdirat(&root, "etc", Mode::from_raw_mode(0o755))?;
            open_etc()?
        }
        other => other?,
    };
    match unlinkat(&etc, "resolv.conf", AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&etc, "resolv.conf", flags, Mode::from_raw_mode(0o644))?);
    file.write_all(content.as_bytes())?;
    fchown(&file, Some(shift.base), Some(shift.base))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The test may not run as root, which alone can give files away.
    fn own() -> UidShift {
        UidShift { base: rustix::process::geteuid().as_raw(), len: 1 }
    }

    #[test]
    fn a_file_a_symlink_or_nothing_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "host").unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(&root).unwrap();
        write_resolv_conf(&root, "one", own()).unwrap();
        write_resolv_conf(&root, "two", own()).unwrap();
        let file = root.join("etc/resolv.conf");
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        fs::remove_file(&file).unwrap();
        symlink(&outside, &file).unwrap();
        write_resolv_conf(&root, "three", own()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "three");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "host");
    }

    #[test]
    fn a_directory_that_leads_out_is_resolved_inside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        for target in [outside.as_path(), Path::new("../outside")] {
            let root = dir.path().join("root");
            fs::create_dir_all(&root).unwrap();
            symlink(target, root.join("etc")).unwrap();
            write_resolv_conf(&root, "x", own()).unwrap_err();
            assert!(fs::read_dir(&outside).unwrap().next().is_none());
            fs::remove_dir_all(&root).unwrap();
        }
    }
}
