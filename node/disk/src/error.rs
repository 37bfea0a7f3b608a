//! Why disk operations fail.

use std::io;
use std::path::PathBuf;

use hutch_types::{BuildId, InstanceId};

use crate::image::LayerId;

/// Why an operation on layers, images or disks failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A setting cannot work.
    #[error("{what}")]
    Config {
        /// What is wrong.
        what: String,
    },
    /// Another daemon uses this data directory.
    #[error("{} is in use by another hutch", .0.display())]
    InUse(PathBuf),
    /// The image of the build is not here.
    #[error("no image for build {0}")]
    NoImage(BuildId),
    /// An image names a layer that is not here.
    #[error("no layer {0}")]
    NoLayer(LayerId),
    /// The image cannot be removed while a disk is based on it.
    #[error("the image of build {build} is in use by {instance}")]
    ImageInUse {
        /// The image's build.
        build: BuildId,
        /// One of the instances that use it.
        instance: InstanceId,
    },
    /// There is already a disk of this instance.
    #[error("instance {0} has a disk already")]
    DiskExists(InstanceId),
    /// There is no disk of this instance.
    #[error("instance {0} has no disk")]
    NoDisk(InstanceId),
    /// The disk's files are there, but its mounts are not: the host was restarted, or the disk was never finished.
    #[error("the disk of instance {instance} is not mounted: {what}")]
    NotMounted {
        /// The instance.
        instance: InstanceId,
        /// What is missing.
        what: String,
    },
    /// Something that is limited has run out.
    #[error("{what} exhausted")]
    Exhausted {
        /// What ran out, with the setting that limits it where there is one.
        what: String,
    },
    /// A file of ours cannot be understood.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A step failed.
    #[error("{attempted}")]
    Failed {
        /// What was attempted on what.
        attempted: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl DiskError {
    /// Whether the cause is a limit: the same call can succeed later.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Exhausted { .. })
    }
}

/// Adds what was attempted to an I/O error.
pub(crate) trait Attempt<T> {
    fn attempting(self, attempted: impl FnOnce() -> String) -> Result<T, DiskError>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempting(self, attempted: impl FnOnce() -> String) -> Result<T, DiskError> {
        self.map_err(|error| DiskError::Failed { attempted: attempted(), source: error.into() })
    }
}

/// Why an archive was not imported. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The archive is not a tar archive that we read, or it is cut off.
    #[error("malformed archive: {what}")]
    Malformed {
        /// What is wrong, with the entry where there is one.
        what: String,
    },
    /// The archive tries something that no root filesystem needs.
    #[error("refused archive entry {entry:?}: {what}")]
    Refused {
        /// The entry's path as written in the archive.
        entry: String,
        /// Why it was refused.
        what: &'static str,
    },
    /// The archive is larger than the limits allow.
    #[error("the archive has more than {limit} {what}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Reading the archive failed.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// Writing an entry failed.
    #[error("write {entry:?}")]
    Write {
        /// The entry.
        entry: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Preparing or publishing the layer failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
