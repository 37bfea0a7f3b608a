//! The OCI runtime driver: instances as hardened containers, made by runc.
//!
//! What each instance is made of: a disk ([`hutch_disk`]), a slot ([`hutch_net`]), a bundle (`bundle`), a cgroup in every
//! hierarchy (`cgroup`), a record on disk (`record`). `start` makes them in that order, `teardown` removes them from
//! whatever is there, and `adopt` is one or the other for each instance that an earlier daemon left. `pause` saves an instance
//! (memory through CRIU, the disk as it is) and takes the rest down; `resume` makes the rest again.
//!
//! runc is only used to set a container up and to take it down; nothing of ours waits on it in between. The containers'
//! first processes are not our children: their end is learnt from a pidfd.
//!
//! The guest is hostile. Nothing on its root filesystem is opened by path from here except through `openat2` with resolution
//! confined to it (`rootfs`, `inside`).

mod adopt;
mod bundle;
mod cgroup;
mod command;
mod config;
mod cpus;
mod criu;
mod flavor;
mod guest;
mod host;
mod inside;
mod instance;
mod lxcfs;
mod pause;
mod pid1;
mod record;
mod resume;
mod rootfs;
mod runtime;
mod start;
mod support;
mod teardown;

pub use config::OciConfig;
pub use runtime::OciRuntime;
pub use support::OciSupport;
