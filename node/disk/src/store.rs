//! The store: directories, locking, cleaning up.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_types::{BuildId, InstanceId};
use parking_lot::{Mutex, RwLock};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::config::{DiskConfig, UidShift};
use crate::error::{Attempt, DiskError};
use crate::image::LayerId;
use crate::{files, loopdev, mounts};

/// A child that a daemon had just forked when it died holds the daemon's lock until it runs its program.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Layers, images and disks of one daemon. Clones share the same store.
#[derive(Debug, Clone)]
pub struct DiskStore {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub shift: UidShift,
    pub reserve_bytes: u64,
    pub layers_dir: PathBuf,
    pub images_dir: PathBuf,
    pub templates_dir: PathBuf,
    pub disks_dir: PathBuf,
    pub mount_dir: PathBuf,
    /// Held for writing while images change, for reading while a disk is made from one.
    pub images: RwLock<()>,
    /// One template is formatted at a time.
    pub formatting: Mutex<()>,
    /// Its lock ends with the process.
    _lock: File,
}

/// What a data directory was made for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Format {
    version: u32,
    shift: UidShift,
}

/// What [`DiskStore::sweep`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Disks, whole or half-made.
    pub disks: usize,
    /// Loop devices that nothing had mounted.
    pub loop_devices: usize,
    /// Layers, images and templates that were never finished.
    pub temporaries: usize,
}

impl DiskStore {
    /// Opens the data directory, making it when missing, and takes the exclusive use of it.
    ///
    /// # Errors
    /// [`DiskError::InUse`] when another process has it open; [`DiskError::Config`] when a setting does not fit this
    /// host or the directory was made with other settings.
    pub fn open(config: DiskConfig) -> Result<Self, DiskError> {
        config.check()?;
        let data_dir = real_dir(&config.data_dir, 0o700)?;
        let mount_dir = real_dir(&config.mount_dir, 0o711)?;
        fs::set_permissions(&mount_dir, fs::Permissions::from_mode(0o711))
            .attempting(|| format!("set the mode of {}", mount_dir.display()))?;
        check_searchable(&mount_dir)?;
        let lock = lock(&data_dir)?;
        let inner = Inner {
            shift: config.shift,
            reserve_bytes: config.reserve_mib.saturating_mul(1024 * 1024),
            layers_dir: data_dir.join("layers"),
            images_dir: data_dir.join("images"),
            templates_dir: data_dir.join("templates"),
            disks_dir: data_dir.join("disks"),
            mount_dir,
            images: RwLock::new(()),
            formatting: Mutex::new(()),
            _lock: lock,
        };
        for dir in [&inner.layers_dir, &inner.images_dir, &inner.templates_dir, &inner.disks_dir] {
            files::make_dir(dir, 0o700)?;
        }
        check_format(&data_dir.join("format.json"), config.shift)?;
        mounts::make_private(&inner.mount_dir)
            .attempting(|| format!("make {} a private mount", inner.mount_dir.display()))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Removes the directory that disks are mounted in, for when this host is to have no more of them. Layers and images stay.
    ///
    /// # Errors
    /// While there are disks.
    pub fn remove_mount_dir(&self) -> Result<(), DiskError> {
        let dir = &self.inner.mount_dir;
        mounts::unmount_private(dir).attempting(|| format!("unmount {}", dir.display()))?;
        fs::remove_dir(dir).attempting(|| format!("remove {}", dir.display()))
    }

    /// How owners in layers are shifted.
    pub fn shift(&self) -> UidShift {
        self.inner.shift
    }

    /// Bytes that can still be written to the data directory's filesystem.
    pub fn host_free_bytes(&self) -> Result<u64, DiskError> {
        let stat = rustix::fs::statvfs(&self.inner.disks_dir)
            .attempting(|| format!("read the free space of {}", self.inner.disks_dir.display()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The instances that have a disk, whole or not.
    pub fn disks(&self) -> Result<Vec<InstanceId>, DiskError> {
        Ok(files::names(&self.inner.disks_dir)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes everything that does not belong to an instance in `keep`: disks with their mounts, loop devices, and
    /// what was never finished. For the start of a daemon, before it makes anything.
    ///
    /// # Errors
    /// The first thing that could not be removed; the rest was tried all the same.
    pub fn sweep(&self, keep: &HashSet<InstanceId>) -> Result<Swept, DiskError> {
        let mut swept = Swept::default();
        let mut first_error = None;
        let is_kept = |name: &str| name.parse().is_ok_and(|id: InstanceId| keep.contains(&id));

        for name in self.names_of_disks()? {
            if !is_kept(&name) {
                match self.remove_disk(&name) {
                    Ok(()) => swept.disks += 1,
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
        }
        let attached = loopdev::attached().attempting(|| "list loop devices".to_owned())?;
        for (device, file) in attached {
            let owner =
                Path::new(&file).strip_prefix(&self.inner.disks_dir).ok().and_then(|p| p.iter().next());
            let Some(owner) = owner.and_then(|name| name.to_str()) else { continue };
            if !is_kept(owner) {
                match loopdev::detach(&device).attempting(|| format!("detach {}", device.display())) {
                    Ok(()) => swept.loop_devices += 1,
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
        }
        for dir in [&self.inner.layers_dir, &self.inner.images_dir, &self.inner.templates_dir] {
            match files::remove_temporaries(dir) {
                Ok(count) => swept.temporaries += count,
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        first_error.map_or(Ok(swept), Err)
    }

    /// Every name under which there are files, mounts or mount points of a disk. A name may be none that we give.
    fn names_of_disks(&self) -> Result<BTreeSet<String>, DiskError> {
        let mut names: BTreeSet<String> = files::names(&self.inner.disks_dir)?.into_iter().collect();
        names.extend(files::names(&self.inner.mount_dir)?);
        let mounted =
            mounts::below(&self.inner.mount_dir).attempting(|| "read what is mounted".to_owned())?;
        for mount in mounted {
            let below = mount.target.strip_prefix(&self.inner.mount_dir).ok();
            names.extend(below.and_then(|p| p.iter().next()?.to_str()).map(str::to_owned));
        }
        Ok(names)
    }

    pub(crate) fn layer_tree(&self, layer: &LayerId) -> PathBuf {
        self.inner.layers_dir.join(layer.as_str()).join("tree")
    }

    pub(crate) fn image_path(&self, build: BuildId) -> PathBuf {
        self.inner.images_dir.join(format!("{build}.json"))
    }

    pub(crate) fn record_path(&self, id: &InstanceId) -> PathBuf {
        self.inner.disks_dir.join(id.as_str()).join("disk.json")
    }
}

/// Makes a directory when it is missing, and gives its path without symlinks.
fn real_dir(path: &Path, mode: u32) -> Result<PathBuf, DiskError> {
    if !path.is_dir() {
        files::make_dir(path, mode)?;
    }
    fs::canonicalize(path).attempting(|| format!("resolve {}", path.display()))
}

/// A container's first process resolves the path of its root with an unprivileged uid.
fn check_searchable(mount_dir: &Path) -> Result<(), DiskError> {
    for dir in mount_dir.ancestors() {
        let meta = fs::metadata(dir).attempting(|| format!("read the mode of {}", dir.display()))?;
        if meta.permissions().mode() & 0o001 == 0 {
            return Err(DiskError::Config {
                what: format!(
                    "root filesystems cannot be mounted in {}: {} is not searchable by everybody",
                    mount_dir.display(),
                    dir.display()
                ),
            });
        }
    }
    Ok(())
}

fn lock(data_dir: &Path) -> Result<File, DiskError> {
    let path = data_dir.join("disk.lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .attempting(|| format!("open {}", path.display()))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10))
            }
            Err(Errno::WOULDBLOCK) => return Err(DiskError::InUse(data_dir.to_owned())),
            Err(error) => return Err(error).attempting(|| format!("lock {}", path.display())),
        }
    }
}

fn check_format(path: &Path, shift: UidShift) -> Result<(), DiskError> {
    let wanted = Format { version: 1, shift };
    match files::read_json::<Format>(path)? {
        None => files::write_json_durable(path, &wanted),
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(DiskError::Config {
            what: format!(
                "{} was made for uid shift {}+{} (format {}), not {}+{} (format {})",
                path.parent().unwrap_or(path).display(),
                found.shift.base,
                found.shift.len,
                found.version,
                shift.base,
                shift.len,
                wanted.version
            ),
        }),
    }
}
