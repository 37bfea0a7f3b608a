//! CRIU's settings. runc finds them through an annotation of the container.

use std::fs;
use std::io;
use std::path::Path;

/// Why each is there:
/// `network-lock skip`: the network is cut off by our own rules, and the default wants iptables.
/// `tcp-established`, `skip-in-flight`: connections inside the instance are saved, half-open ones dropped.
/// `file-locks`, `link-remap`, `ghost-limit`, `ext-unix-sk`: ordinary programs hold locks, keep deleted files open (these are
/// saved with the memory, up to the limit in bytes) and talk over unix sockets.
const SETTINGS: &str = "\
network-lock skip
tcp-established
skip-in-flight
file-locks
link-remap
ghost-limit 1073741824
ext-unix-sk
";

/// Writes the settings to `path`.
pub(crate) fn write_settings(path: &Path) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|text| text == SETTINGS) {
        return Ok(());
    }
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, SETTINGS)?;
    fs::rename(temporary, path)
}
