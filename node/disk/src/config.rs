//! Where disks live and how owners are shifted.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::DiskError;

/// How owners inside a sandbox map to owners on the host: id `n` inside is `base + n` outside, for `n < len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UidShift {
    /// The host id of the sandbox's root.
    pub base: u32,
    /// How many ids are mapped.
    pub len: u32,
}

impl Default for UidShift {
    fn default() -> Self {
        Self { base: 100_000, len: 65_536 }
    }
}

impl UidShift {
    /// The host's id for `id` inside, or `None` when it is outside the mapped range.
    pub fn to_host(self, id: u64) -> Option<u32> {
        let id = u32::try_from(id).ok().filter(|id| *id < self.len)?;
        self.base.checked_add(id)
    }
}

/// Settings of a [`crate::DiskStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Layers, images and disk files. Made when missing, readable by root alone.
    pub data_dir: PathBuf,
    /// Where root filesystems are mounted. Every parent must be searchable by everybody.
    pub mount_dir: PathBuf,
    /// How owners are shifted. Layers are imported for one shift: opening a data directory with another is refused.
    pub shift: UidShift,
    /// Space in MiB on the data directory's filesystem that new disks never eat into.
    pub reserve_mib: u64,
}

impl DiskConfig {
    /// Defaults for a data directory: mounts in `/run/hutch/<hash of the directory>`, a reserve of 2 GiB.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let data_dir = data_dir.into();
        let mount_dir = default_mount_dir(&data_dir);
        Self { data_dir, mount_dir, shift: UidShift::default(), reserve_mib: 2048 }
    }

    pub(crate) fn check(&self) -> Result<(), DiskError> {
        let bad = |what: String| Err(DiskError::Config { what });
        if self.shift.len == 0 || self.shift.base.checked_add(self.shift.len).is_none() {
            return bad(format!("uid shift {}+{} does not fit", self.shift.base, self.shift.len));
        }
        for dir in [&self.data_dir, &self.mount_dir] {
            if dir.as_os_str().is_empty() || dir.as_os_str().as_encoded_bytes().contains(&b'\n') {
                return bad(format!("{} is not usable as a directory for disks", dir.display()));
            }
        }
        Ok(())
    }
}

/// Two daemons with different data directories get different mount directories, and the same daemon always the same.
fn default_mount_dir(data_dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let real = std::fs::canonicalize(&absolute).unwrap_or(absolute);
    let hash = Sha256::digest(real.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(6).map(|b| format!("{b:02x}")).collect();
    Path::new("/run/hutch").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_the_mapped_range_have_no_host_id() {
        let shift = UidShift::default();
        assert_eq!(shift.to_host(0), Some(100_000));
        assert_eq!(shift.to_host(65_535), Some(165_535));
        assert_eq!(shift.to_host(65_536), None);
        assert_eq!(shift.to_host(u64::MAX), None);
    }

    #[test]
    fn every_data_directory_has_its_own_mount_directory() {
        let a = DiskConfig::new("/var/lib/hutch-a").mount_dir;
        assert_eq!(a, DiskConfig::new("/var/lib/hutch-a").mount_dir);
        assert_ne!(a, DiskConfig::new("/var/lib/hutch-b").mount_dir);
        assert!(a.starts_with("/run/hutch"));
    }

    #[test]
    fn a_shift_that_overflows_is_refused() {
        let mut config = DiskConfig::new("/tmp/x");
        config.shift = UidShift { base: u32::MAX - 5, len: 10 };
        assert!(matches!(config.check(), Err(DiskError::Config { .. })));
    }
}
