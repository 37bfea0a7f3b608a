//! Kernel settings under `/proc/sys/net`: those of the network namespace of the calling thread.

use std::fs;
use std::io;
use std::path::Path;

/// Reads a setting, without the newline.
pub(crate) fn read(name: &str) -> io::Result<String> {
    Ok(fs::read_to_string(Path::new("/proc/sys/net").join(name))?.trim().to_owned())
}

/// Writes a setting.
pub(crate) fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(Path::new("/proc/sys/net").join(name), value)
}

/// Writes a setting that only makes things better: a kernel without it is fine.
pub(crate) fn try_write(name: &str, value: &str) {
    if let Err(error) = write(name, value) {
        tracing::debug!(name, value, %error, "kernel setting not written");
    }
}
