//! The disks of sandboxes.
//!
//! A root filesystem is an overlay of read-only layers (directory trees, owned in the shifted uid range) and one
//! writable upper. The upper lives on a sparse ext4 image of its own, so that the disk limit is a real filesystem
//! size: `df` is right, and writing beyond it fails with `ENOSPC` inside while everybody else goes on.
//!
//! ```text
//! <data>/layers/<layer>/tree          imported root filesystems, published by rename
//! <data>/images/<build>.json          ordered layers and configuration of a build
//! <data>/templates/ext4-*-<mib>.img   formatted images that new disks are copied from
//! <data>/disks/<instance>/            disk.img, disk.json
//! <mounts>/<instance>/mnt             the ext4 image, holding `upper` and `work`
//! <mounts>/<instance>/root            the overlay: what the sandbox sees as `/`
//! ```
//!
//! Mounts live outside the data directory because a container's first process resolves the path of its root as an
//! unprivileged uid: every parent must be searchable by everybody, which a data directory in somebody's home is not.
//!
//! All functions block on the kernel for some milliseconds (imports for seconds): call them from a blocking thread.
//! Whatever a crash leaves behind, [`DiskStore::sweep`] removes.

mod config;
mod disk;
mod error;
mod exec;
mod ext4;
mod files;
mod image;
mod import;
mod loopdev;
mod mounts;
mod store;
mod support;
mod tarball;
mod unpack;

pub use config::{DiskConfig, UidShift};
pub use disk::{DiskUsage, InstanceDisk};
pub use error::{DiskError, ImportError};
pub use image::{Image, ImageConfig, LayerId};
pub use import::{ImportLimits, ImportProgress, Imported};
pub use store::{DiskStore, Swept};
pub use support::DiskSupport;
