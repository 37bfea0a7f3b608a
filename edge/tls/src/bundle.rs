//! One file with the CAs of the system and ours. `SSL_CERT_FILE` replaces a program's roots rather than adding to them, so a file with
//! our CA alone would cut the program off from the rest of the world.

use std::path::{Path, PathBuf};

use crate::storage::{self, PUBLIC, StorageError};

pub(crate) const BUNDLE_FILE: &str = "ca-bundle.pem";

/// Where distributions keep their roots, most common first.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Writes `ca` behind the system's roots into the bundle of `dir`. A bundle that has them already is left alone.
pub(crate) fn write(dir: &Path, ca: &str) -> Result<(), StorageError> {
    write_with(dir, ca, &SYSTEM.map(PathBuf::from))
}

fn write_with(dir: &Path, ca: &str, candidates: &[PathBuf]) -> Result<(), StorageError> {
    let mut roots = String::new();
    for candidate in candidates {
        // One that cannot be read is as good as none: ours must be written in any case.
        if let Ok(Some(text)) = storage::read(candidate)
            && text.contains("BEGIN CERTIFICATE")
        {
            roots = text;
            break;
        }
    }
    if roots.is_empty() {
        tracing::warn!("this machine has no CA bundle: {BUNDLE_FILE} has the local CA alone");
    } else if !roots.ends_with('\n') {
        roots.push('\n');
    }
    let text = roots + ca;
    let path = dir.join(BUNDLE_FILE);
    if storage::read(&path)?.as_deref() != Some(text.as_str()) {
        storage::write(&path, &text, PUBLIC)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_roots_come_along_and_changes_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (none, system) = (dir.path().join("none"), dir.path().join("system"));
        let candidates = [none, system.clone()];
        let bundle = || std::fs::read_to_string(dir.path().join(BUNDLE_FILE)).unwrap();
        write_with(dir.path(), "OURS\n", &candidates).unwrap();
        assert_eq!(bundle(), "OURS\n");
        std::fs::write(&system, "-----BEGIN CERTIFICATE-----").unwrap();
        write_with(dir.path(), "OURS\n", &candidates).unwrap();
        assert_eq!(bundle(), "-----BEGIN CERTIFICATE-----\nOURS\n");
    }
}
