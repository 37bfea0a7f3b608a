//! The writable disk of one instance and its root filesystem.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hutch_types::{BuildId, InstanceId};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Attempt, DiskError};
use crate::image::{Image, LayerId};
use crate::store::DiskStore;
use crate::{ext4, files, loopdev, mounts};

/// The smallest disk that there can be, in MiB: room for ext4's own structures and something beyond.
const LEAST_MIB: u32 = 16;

/// The largest, in MiB (16 TiB): what a file can hold.
const MOST_MIB: u32 = 16 * 1024 * 1024;

/// How long a disk that was closed may stay in use.
const DETACH_LIMIT: Duration = Duration::from_secs(5);

/// What is kept about a disk for the next daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskRecord {
    pub build_id: BuildId,
    pub layers: Vec<LayerId>,
    pub disk_mib: u32,
}

/// Space on a disk as programs inside see it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// Size of the filesystem: the limit without ext4's own structures.
    pub total_bytes: u64,
    /// What is taken.
    pub used_bytes: u64,
    /// What can still be written.
    pub free_bytes: u64,
}

/// A mounted disk. Clones are the same disk; dropping the handle leaves it as it is.
#[derive(Debug, Clone)]
pub struct InstanceDisk {
    inner: Arc<InstanceDiskInner>,
}

#[derive(Debug)]
struct InstanceDiskInner {
    store: DiskStore,
    id: InstanceId,
    record: DiskRecord,
    paths: DiskPaths,
}

/// Where the parts of a disk are.
#[derive(Debug)]
struct DiskPaths {
    files: PathBuf,
    image: PathBuf,
    mounts: PathBuf,
    mnt: PathBuf,
    root: PathBuf,
}

impl InstanceDisk {
    /// The instance that it belongs to.
    pub fn id(&self) -> &InstanceId {
        &self.inner.id
    }

    /// The root filesystem, with owners in the shifted range.
    pub fn root(&self) -> &Path {
        &self.inner.paths.root
    }

    /// The build that it started from.
    pub fn build_id(&self) -> BuildId {
        self.inner.record.build_id
    }

    /// Its limit in MiB.
    pub fn disk_mib(&self) -> u32 {
        self.inner.record.disk_mib
    }

    /// Space on it now.
    pub fn usage(&self) -> Result<DiskUsage, DiskError> {
        let mnt = &self.inner.paths.mnt;
        let stat =
            rustix::fs::statvfs(mnt).attempting(|| format!("read the free space of {}", mnt.display()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(DiskUsage {
            total_bytes: bytes(stat.f_blocks),
            used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
            free_bytes: bytes(stat.f_bavail),
        })
    }

    /// Makes all that was written to it survive a crash of the host.
    pub fn sync(&self) -> Result<(), DiskError> {
        let paths = &self.inner.paths;
        paths.sync().attempting(|| format!("write out {}", paths.mnt.display()))
    }

    /// Unmounts and deletes it. What was not written out yet never is. May be called again.
    pub fn destroy(&self) -> Result<(), DiskError> {
        self.inner.store.destroy_disk(&self.inner.id)
    }
}

impl DiskPaths {
    fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::syncfs(rustix::fs::open(&self.mnt, flags, Mode::empty())?)?;
        // What the loop device wrote is in the image, but need not be on the host's disk.
        File::open(&self.image)?.sync_all()
    }
}

impl DiskStore {
    /// Formats the image that disks of `disk_mib` MiB are copied from, unless it is there. [`Self::create_disk`] does it
    /// when it is needed; doing it ahead saves the first create some milliseconds.
    pub fn ensure_template(&self, disk_mib: u32) -> Result<PathBuf, DiskError> {
        if !(LEAST_MIB..=MOST_MIB).contains(&disk_mib) {
            return Err(DiskError::Config {
                what: format!("a disk has {LEAST_MIB} to {MOST_MIB} MiB, not {disk_mib}"),
            });
        }
        let path = self.inner.templates_dir.join(format!("{}-{disk_mib}.img", ext4::FORMAT));
        let _formatting = self.inner.formatting.lock();
        if path.is_file() {
            return Ok(path);
        }
        let temporary = files::temporary_beside(&path);
        ext4::format(&temporary, disk_mib)
            .and_then(|()| fs::rename(&temporary, &path))
            .and_then(|()| files::sync_parent(&path))
            .attempting(|| format!("format a disk of {disk_mib} MiB with mkfs.ext4"))?;
        Ok(path)
    }

    /// Makes and mounts a new disk. Any number may run at the same time.
    ///
    /// # Errors
    /// [`DiskError::Exhausted`] when the host's reserve would be touched or loop devices ran out,
    /// [`DiskError::DiskExists`], [`DiskError::NoLayer`], or a failed step. Then nothing of the disk is left, unless
    /// it existed before.
    pub fn create_disk(
        &self,
        id: &InstanceId,
        image: &Image,
        disk_mib: u32,
    ) -> Result<InstanceDisk, DiskError> {
        let template = self.ensure_template(disk_mib)?;
        let _images = self.inner.images.read();
        if self.host_free_bytes()? < self.inner.reserve_bytes {
            let reserve_mib = self.inner.reserve_bytes / (1024 * 1024);
            return Err(DiskError::Exhausted {
                what: format!("disk space above the reserve of {reserve_mib} MiB"),
            });
        }
        if let Some(missing) = image.layers.iter().find(|layer| !self.layer_tree(layer).is_dir()) {
            return Err(DiskError::NoLayer(missing.clone()));
        }
        let paths = self.disk_paths(id.as_str());
        match fs::create_dir(&paths.files) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(DiskError::DiskExists(id.clone()));
            }
            Err(error) => return Err(error).attempting(|| format!("create {}", paths.files.display())),
        }
        let record = DiskRecord { build_id: image.build_id, layers: image.layers.clone(), disk_mib };
        match self.make_disk(&paths, &record, &template, id) {
            Ok(()) => Ok(self.handle(id, record, paths)),
            Err(error) => {
                if let Err(cleanup) = self.remove_disk(id.as_str()) {
                    tracing::warn!(instance = %id, error = %cleanup, "a half-made disk is left for the next sweep");
                }
                Err(error)
            }
        }
    }

    fn make_disk(
        &self,
        paths: &DiskPaths,
        record: &DiskRecord,
        template: &Path,
        id: &InstanceId,
    ) -> Result<(), DiskError> {
        let record_path = self.record_path(id);
        // A crash of the host ends the instance, so that this need not be durable.
        serde_json::to_vec(record)
            .map_err(io::Error::from)
            .and_then(|bytes| fs::write(&record_path, bytes))
            .attempting(|| format!("write {}", record_path.display()))?;
        let image = ext4::copy_sparse(template, &paths.image)
            .attempting(|| format!("copy a formatted image to {}", paths.image.display()))?;
        self.mount_disk(paths, record, &image, true)
    }

    /// Mounts a disk whose image is there. In a fresh one the overlay's directories are made.
    fn mount_disk(
        &self,
        paths: &DiskPaths,
        record: &DiskRecord,
        image: &File,
        is_fresh: bool,
    ) -> Result<(), DiskError> {
        for dir in [&paths.mounts, &paths.mnt, &paths.root] {
            fs::create_dir(dir).attempting(|| format!("create {}", dir.display()))?;
        }
        // The container's first process has to get through here with an unprivileged uid.
        fs::set_permissions(&paths.mounts, fs::Permissions::from_mode(0o711))
            .attempting(|| format!("set the mode of {}", paths.mounts.display()))?;
        let device = match loopdev::attach(image) {
            Ok(device) => device,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(DiskError::Exhausted { what: "loop devices".to_owned() });
            }
            Err(error) => return Err(error).attempting(|| "attach a loop device".to_owned()),
        };
        mounts::mount_ext4(device.path(), &paths.mnt)
            .attempting(|| format!("mount {} on {}", device.path().display(), paths.mnt.display()))?;

        let (upper, work) = (paths.mnt.join("upper"), paths.mnt.join("work"));
        let lowers: Vec<PathBuf> = record.layers.iter().map(|layer| self.layer_tree(layer)).collect();
        if is_fresh {
            self.make_upper(&upper, &work, lowers.last())
                .attempting(|| format!("prepare {}", paths.mnt.display()))?;
        }
        mounts::mount_overlay(&lowers, &upper, &work, &paths.root)
            .attempting(|| format!("mount the overlay on {}", paths.root.display()))
    }

    /// The upper's own owner and mode are those of `/`: they come from the topmost layer.
    fn make_upper(&self, upper: &Path, work: &Path, top: Option<&PathBuf>) -> io::Result<()> {
        let base = self.inner.shift.base;
        let (uid, gid, mode) = match top {
            Some(top) => fs::metadata(top).map(|m| (m.uid(), m.gid(), m.mode() & 0o7777))?,
            None => (base, base, 0o755),
        };
        fs::create_dir(upper)?;
        fs::create_dir(work)?;
        std::os::unix::fs::chown(upper, Some(uid), Some(gid))?;
        fs::set_permissions(upper, fs::Permissions::from_mode(mode))
    }

    /// Takes over the disk of an instance that an earlier daemon started.
    ///
    /// # Errors
    /// [`DiskError::NoDisk`] or [`DiskError::NotMounted`] when it cannot go on; [`Self::destroy_disk`] removes the rest.
    pub fn open_disk(&self, id: &InstanceId) -> Result<InstanceDisk, DiskError> {
        let record: DiskRecord =
            files::read_json(&self.record_path(id))?.ok_or_else(|| DiskError::NoDisk(id.clone()))?;
        let paths = self.disk_paths(id.as_str());
        let mounted = mounts::below(&paths.mounts).attempting(|| "read what is mounted".to_owned())?;
        let missing = |what: &str| DiskError::NotMounted { instance: id.clone(), what: what.to_owned() };
        let ext4 = mounted.iter().find(|m| m.target == paths.mnt && m.kind == "ext4");
        if !ext4.is_some_and(|m| ext4::is_backed_by(m.device, &paths.image)) {
            return Err(missing("its image"));
        }
        if !mounted.iter().any(|m| m.target == paths.root && m.kind == "overlay") {
            return Err(missing("its overlay"));
        }
        Ok(self.handle(id, record, paths))
    }

    /// Unmounts the disk of an instance that does not run any more and keeps it, so that it survives a crash of the host.
    /// May be called again.
    ///
    /// # Errors
    /// [`DiskError::NoDisk`], or a failed step; [`Self::reopen_disk`] and [`Self::destroy_disk`] work all the same.
    pub fn close_disk(&self, id: &InstanceId) -> Result<(), DiskError> {
        let paths = self.disk_paths(id.as_str());
        let record_path = self.record_path(id);
        let record: DiskRecord =
            files::read_json(&record_path)?.ok_or_else(|| DiskError::NoDisk(id.clone()))?;
        files::write_json_durable(&record_path, &record)?;
        self.unmount_disk(&paths)?;
        File::open(&paths.image)
            .and_then(|image| image.sync_all())
            .and_then(|()| files::sync_parent(&paths.image))
            .and_then(|()| files::sync_parent(&paths.files))
            .attempting(|| format!("write out {}", paths.image.display()))
    }

    /// Mounts a disk that was closed.
    ///
    /// # Errors
    /// [`DiskError::NoDisk`], [`DiskError::NoLayer`], [`DiskError::Exhausted`] when loop devices ran out, or a failed step.
    /// Then it is closed as before.
    pub fn reopen_disk(&self, id: &InstanceId) -> Result<InstanceDisk, DiskError> {
        let record: DiskRecord =
            files::read_json(&self.record_path(id))?.ok_or_else(|| DiskError::NoDisk(id.clone()))?;
        if let Some(missing) = record.layers.iter().find(|layer| !self.layer_tree(layer).is_dir()) {
            return Err(DiskError::NoLayer(missing.clone()));
        }
        let paths = self.disk_paths(id.as_str());
        self.unmount_disk(&paths)?;
        // A mount namespace that was copied from ours may keep the old mount for a while. Mounted twice, the filesystem
        // would be destroyed.
        loopdev::wait_detached(&paths.image, DETACH_LIMIT)
            .attempting(|| format!("wait for the last user of {}", paths.image.display()))?;
        let image = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&paths.image)
            .attempting(|| format!("open {}", paths.image.display()))?;
        match self.mount_disk(&paths, &record, &image, false) {
            Ok(()) => Ok(self.handle(id, record, paths)),
            Err(error) => {
                if let Err(cleanup) = self.unmount_disk(&paths) {
                    tracing::warn!(instance = %id, error = %cleanup, "a disk could not be unmounted again");
                }
                Err(error)
            }
        }
    }

    /// Unmounts and deletes the disk of an instance, whole or half-made; none at all is no error.
    pub fn destroy_disk(&self, id: &InstanceId) -> Result<(), DiskError> {
        self.remove_disk(id.as_str())
    }

    /// `name` is a single path component.
    pub(crate) fn remove_disk(&self, name: &str) -> Result<(), DiskError> {
        let paths = self.disk_paths(name);
        if let Err(error) = ext4::abandon(&paths.mnt, &paths.image) {
            // Then unmounting takes as long as writing everything out does.
            tracing::debug!(disk = name, %error, "the filesystem cannot be abandoned");
        }
        self.unmount_disk(&paths)?;
        // Space comes back now even if a mount namespace that was just copied from ours keeps the file open for a while.
        if let Ok(image) = OpenOptions::new().write(true).open(&paths.image) {
            image.set_len(0).attempting(|| format!("truncate {}", paths.image.display()))?;
        }
        files::absent_is_fine(fs::remove_dir_all(&paths.files))
            .attempting(|| format!("remove {}", paths.files.display()))
    }

    fn unmount_disk(&self, paths: &DiskPaths) -> Result<(), DiskError> {
        for target in [&paths.root, &paths.mnt] {
            mounts::unmount(target).attempting(|| format!("unmount {}", target.display()))?;
        }
        // Never recursively: if something were still mounted there, its files would go.
        for dir in [&paths.root, &paths.mnt, &paths.mounts] {
            files::absent_is_fine(fs::remove_dir(dir)).attempting(|| format!("remove {}", dir.display()))?;
        }
        Ok(())
    }

    fn disk_paths(&self, name: &str) -> DiskPaths {
        let files = self.inner.disks_dir.join(name);
        let mounts = self.inner.mount_dir.join(name);
        DiskPaths {
            image: files.join("disk.img"),
            mnt: mounts.join("mnt"),
            root: mounts.join("root"),
            files,
            mounts,
        }
    }

    fn handle(&self, id: &InstanceId, record: DiskRecord, paths: DiskPaths) -> InstanceDisk {
        InstanceDisk {
            inner: Arc::new(InstanceDiskInner { store: self.clone(), id: id.clone(), record, paths }),
        }
    }
}
