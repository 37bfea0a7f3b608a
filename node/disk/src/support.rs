//! What this host can do for disks: for `hutch doctor`.

use std::fs::OpenOptions;
use std::path::Path;

use hutch_types::Check;

/// What disks need from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSupport {
    /// The kernel has overlayfs. Writable uppers are always on ext4, so that the data directory may itself be on any
    /// filesystem that can be a lower layer, overlayfs included.
    pub overlay: Check,
    /// Loop devices can be attached.
    pub loop_devices: Check,
    /// The kernel has ext4 and `mkfs.ext4` is installed.
    pub ext4: Check,
    /// The data directory's filesystem and its free space.
    pub data_dir: Check,
}

impl DiskSupport {
    /// Looks at the host and at the nearest existing directory above `data_dir`. Changes nothing.
    pub fn detect(data_dir: &Path) -> Self {
        Self {
            overlay: filesystem("overlay"),
            loop_devices: loop_devices(),
            ext4: match filesystem("ext4") {
                Check::Works(_) => mkfs(),
                fails => fails,
            },
            data_dir: data_dir_check(data_dir),
        }
    }

    /// Whether disks can be made here.
    pub fn works(&self) -> bool {
        [&self.overlay, &self.loop_devices, &self.ext4, &self.data_dir].iter().all(|check| check.works())
    }
}

fn filesystem(name: &str) -> Check {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().last() == Some(name)) {
        return Check::Works(name.to_owned());
    }
    // A module that is not loaded yet is not listed; the first mount loads it.
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = format!("/lib/modules/{release}/modules.dep");
    let wanted = format!("/{name}.ko");
    if std::fs::read_to_string(modules).is_ok_and(|text| text.contains(&wanted)) {
        return Check::Works(format!("{name} (module)"));
    }
    Check::Fails(format!("the kernel has no {name}: run modprobe {name} or use a kernel that has it"))
}

fn loop_devices() -> Check {
    match OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => Check::Works("/dev/loop-control".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Check::Fails("no access to /dev/loop-control: run as root".to_owned())
        }
        Err(error) => Check::Fails(format!("/dev/loop-control: {error}: run modprobe loop")),
    }
}

fn mkfs() -> Check {
    let found =
        crate::ext4::MKFS_PATH.split(':').map(|dir| Path::new(dir).join("mkfs.ext4")).find(|p| p.is_file());
    match found {
        Some(path) => Check::Works(path.display().to_string()),
        None => Check::Fails("mkfs.ext4 is missing: apt-get install e2fsprogs".to_owned()),
    }
}

fn data_dir_check(data_dir: &Path) -> Check {
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let Some(existing) = absolute.ancestors().find(|dir| dir.is_dir()) else {
        return Check::Fails(format!("{} has no existing parent", data_dir.display()));
    };
    let mounts = crate::mounts::list().unwrap_or_default();
    let real = std::fs::canonicalize(existing).unwrap_or_else(|_| existing.to_owned());
    let kind = mounts
        .iter()
        .filter(|m| real.starts_with(&m.target))
        .max_by_key(|m| m.target.as_os_str().len())
        .map_or("unknown", |m| m.kind.as_str());
    match rustix::fs::statvfs(&real) {
        Ok(stat) => {
            let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) / (1024 * 1024);
            Check::Works(format!("{kind}, {free_mib} MiB free"))
        }
        Err(error) => Check::Fails(format!("{}: {error}", real.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_filesystem_says_what_to_do() {
        let Check::Fails(text) = filesystem("nosuchfs") else { panic!("there is no such filesystem") };
        assert!(text.contains("modprobe nosuchfs"));
    }

    #[test]
    fn the_nearest_existing_parent_of_the_data_directory_is_looked_at() {
        let dir = tempfile::tempdir().expect("tempdir");
        let support = DiskSupport::detect(&dir.path().join("not/yet/there"));
        assert!(support.data_dir.works(), "{:?}", support.data_dir);
    }
}
