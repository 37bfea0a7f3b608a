//! The plain HTTP routes, files excepted.

mod envs;
mod health;
mod init;
mod logs;
mod metrics;
mod tunnel;

pub(crate) use envs::envs;
pub(crate) use health::health;
pub(crate) use init::init;
pub(crate) use logs::logs;
pub(crate) use metrics::metrics;
pub(crate) use tunnel::tunnel;
