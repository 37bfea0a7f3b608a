//! Additional certificate authorities in the trust stores of the image (`caBundle` of `/init`).
//!
//! A store has two parts. The *bundle* is one file that programs read; the *anchors* are a directory from which the
//! distribution's tool (`update-ca-certificates`, `update-ca-trust`) makes the bundle anew. Certificates go to both: to the
//! bundle so that they are in force at once, without running anything of the image's, and to the anchors so that the
//! tool keeps them.
//!
//! Applying the same certificates again changes nothing; applying others replaces those of the last time.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Certificates in one request, and the bytes of all of them.
const MOST: usize = 64;
const MOST_BYTES: usize = 256 << 10;

/// A bundle that is larger is not one.
const MOST_BUNDLE_BYTES: u64 = 16 << 20;

/// What programs read, relative to the root. Other names of the same files are symlinks in the images.
const BUNDLES: [&str; 4] = [
    // Debian, Ubuntu, Alpine, Arch.
    "etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL and their like.
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/pki/tls/certs/ca-bundle.crt",
    // SUSE.
    "var/lib/ca-certificates/ca-bundle.pem",
];

/// What the distributions' tools read; the names of files end as they want it.
const ANCHORS: [&str; 4] = [
    "usr/local/share/ca-certificates",
    "etc/pki/ca-trust/source/anchors",
    "etc/pki/trust/anchors",
    "etc/ca-certificates/trust-source/anchors",
];

/// Files of ours among the anchors are called so, with 16 hexadecimal digits between the two.
const PREFIX: &str = "hutch-";
const SUFFIX: &str = ".crt";

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Why a bundle was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PemError {
    #[error("caBundle has more than {MOST_BYTES} bytes or {MOST} certificates")]
    TooLarge,
    #[error("caBundle has text that is no certificate in PEM")]
    Foreign,
    #[error("caBundle has a certificate that is not base64 of DER")]
    Malformed,
}

/// Certificates, each as DER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authorities(Vec<Vec<u8>>);

impl Authorities {
    /// Reads PEM: certificates and white space, at least one certificate, nothing else.
    pub fn parse(pem: &str) -> Result<Self, PemError> {
        if pem.len() > MOST_BYTES {
            return Err(PemError::TooLarge);
        }
        let mut all = Vec::new();
        let mut rest = 0;
        for range in blocks(pem) {
            if !pem.get(rest..range.start).is_some_and(|between| between.trim().is_empty()) {
                return Err(PemError::Foreign);
            }
            rest = range.end;
            let der = pem.get(range).and_then(der_of).filter(|der| is_sequence(der));
            all.push(der.ok_or(PemError::Malformed)?);
        }
        if all.is_empty() || !pem.get(rest..).is_some_and(|after| after.trim().is_empty()) {
            return Err(PemError::Foreign);
        }
        if all.len() > MOST { Err(PemError::TooLarge) } else { Ok(Self(all)) }
    }

    /// Puts them into every store below `root`. An image that has none gets the bundle that most programs look for.
    pub fn install(&self, root: &Path) -> io::Result<()> {
        let mut former = BTreeSet::new();
        for anchors in ANCHORS.map(|dir| root.join(dir)).into_iter().filter(|dir| dir.is_dir()) {
            former.extend(self.install_anchors(&anchors)?);
        }
        let bundles: BTreeSet<PathBuf> =
            BUNDLES.iter().filter_map(|path| fs::canonicalize(root.join(path)).ok()).collect();
        for bundle in &bundles {
            self.install_bundle(bundle, &former)?;
        }
        if bundles.is_empty() {
            let [common, ..] = BUNDLES.map(|path| root.join(path));
            if let Some(dir) = common.parent() {
                fs::create_dir_all(dir)?;
            }
            replace(&common, &self.added_to("", &former), 0o644)?;
        }
        Ok(())
    }

    /// Returns the certificates that were ours before.
    fn install_anchors(&self, dir: &Path) -> io::Result<Vec<Vec<u8>>> {
        let wanted: BTreeSet<String> = self.0.iter().map(|der| anchor_name(der)).collect();
        let mut former = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str().filter(|name| is_anchor_name(name)) else { continue };
            let path = dir.join(name);
            former.extend(fs::read_to_string(&path).ok().as_deref().and_then(der_of));
            if !wanted.contains(name) {
                fs::remove_file(&path)?;
            }
        }
        for der in &self.0 {
            let path = dir.join(anchor_name(der));
            if fs::read_to_string(&path).ok().as_deref().and_then(der_of).as_ref() != Some(der) {
                replace(&path, &pem_of(der), 0o644)?;
            }
        }
        Ok(former)
    }

    fn install_bundle(&self, bundle: &Path, former: &BTreeSet<Vec<u8>>) -> io::Result<()> {
        let meta = fs::metadata(bundle)?;
        if !meta.is_file() || meta.len() > MOST_BUNDLE_BYTES {
            return Err(io::Error::other(format!("{} is no bundle of certificates", bundle.display())));
        }
        let old = fs::read_to_string(bundle)?;
        let new = self.added_to(&old, former);
        if new == old { Ok(()) } else { replace(bundle, &new, meta.permissions().mode() & 0o777) }
    }

    /// `bundle` with these certificates at its end, and without those of `former` that are not among them.
    fn added_to(&self, bundle: &str, former: &BTreeSet<Vec<u8>>) -> String {
        let mut missing: Vec<&Vec<u8>> = self.0.iter().collect();
        let mut text = String::with_capacity(bundle.len() + 4096);
        let mut rest = 0;
        for range in blocks(bundle) {
            let der = bundle.get(range.clone()).and_then(der_of);
            let is_dropped = der.as_ref().is_some_and(|der| former.contains(der) && !self.0.contains(der));
            missing.retain(|wanted| der.as_ref() != Some(*wanted));
            let kept = if is_dropped { rest..range.start } else { rest..range.end };
            text.push_str(bundle.get(kept).unwrap_or_default());
            rest = range.end;
        }
        text.push_str(bundle.get(rest..).unwrap_or_default());
        for der in missing {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&pem_of(der));
        }
        text
    }
}

/// Where certificates are in a text, their first and last lines included.
fn blocks(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text.get(from..).and_then(|rest| rest.find(BEGIN)).map(|at| from + at) {
        let Some(end) = text.get(start..).and_then(|rest| rest.find(END)).map(|at| start + at + END.len())
        else {
            break;
        };
        found.push(start..end);
        from = end;
    }
    found
}

/// The content of the one certificate in `block`.
fn der_of(block: &str) -> Option<Vec<u8>> {
    let body = block.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
    let body: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(body).ok()
}

/// Whether `der` is one DER sequence and nothing after it, as a certificate is.
fn is_sequence(der: &[u8]) -> bool {
    let (Some(0x30), Some(&first)) = (der.first(), der.get(1)) else { return false };
    let of_length = usize::from(first & 0x7f);
    if first < 0x80 {
        return der.len() == 2 + of_length;
    }
    let Some(bytes) = der.get(2..2 + of_length).filter(|bytes| (1..=3).contains(&bytes.len())) else {
        return false;
    };
    let length = bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
    der.len() == 2 + of_length + length
}

fn pem_of(der: &[u8]) -> String {
    let mut text = format!("{BEGIN}\n");
    for (n, c) in STANDARD.encode(der).chars().enumerate() {
        if n > 0 && n % 64 == 0 {
            text.push('\n');
        }
        text.push(c);
    }
    text + "\n" + END + "\n"
}

fn anchor_name(der: &[u8]) -> String {
    let digits: String = Sha256::digest(der).iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("{PREFIX}{digits}{SUFFIX}")
}

fn is_anchor_name(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Readers find the old content or the new one.
fn replace(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".hutch-new");
    let temporary = PathBuf::from(temporary);
    // Left behind by an envd that died, or a trap.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content.as_bytes())?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        fs::remove_file(&temporary).ok();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shaped as a certificate is, which is all that is looked at.
    fn certificate(n: u8) -> String {
        let mut der = vec![0x30, 0x82, 0x01, 0x00];
        der.extend([n; 256]);
        pem_of(&der)
    }

    fn authorities(pem: &str) -> Authorities {
        Authorities::parse(pem).unwrap()
    }

    #[test]
    fn what_is_not_pem_is_refused() {
        assert_eq!(authorities(&(certificate(1) + "\r\n\n" + &certificate(2))).0.len(), 2);
        let windows = certificate(1).replace('\n', "\r\n");
        assert_eq!(authorities(&windows), authorities(&certificate(1)));
        let key = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
        for foreign in [
            "",
            " ",
            "hello",
            key,
            &(certificate(1) + key),
            &("# mine\n".to_owned() + &certificate(1)),
            BEGIN,
        ] {
            assert_eq!(Authorities::parse(foreign), Err(PemError::Foreign), "{foreign}");
        }
        let cut = certificate(1).replacen("AQEB", "", 1);
        for body in ["", "!!", "MAA", "aGVsbG8=", "MAUAAA=="] {
            let pem = format!("{BEGIN}\n{body}\n{END}\n");
            assert_eq!(Authorities::parse(&pem), Err(PemError::Malformed), "{body}");
        }
        assert_eq!(Authorities::parse(&cut), Err(PemError::Malformed), "its length is not what it says");
        assert_eq!(Authorities::parse(&certificate(1).repeat(65)), Err(PemError::TooLarge));
        assert_eq!(Authorities::parse(&" ".repeat(MOST_BYTES + 1)), Err(PemError::TooLarge));
    }

    #[test]
    fn a_bundle_keeps_what_it_had_and_the_same_again_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let bundle = root.path().join(BUNDLES[0]);
        fs::create_dir_all(bundle.parent().unwrap()).unwrap();
        let own = format!("# comment\n{}", certificate(9).trim_end());
        fs::write(&bundle, &own).unwrap();
        for _ in 0..2 {
            authorities(&certificate(1)).install(root.path()).unwrap();
            assert_eq!(fs::read_to_string(&bundle).unwrap(), format!("{own}\n{}", certificate(1)));
        }
        assert_eq!(fs::read_dir(bundle.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn certificates_survive_the_distributions_tool_and_are_replaced_by_others() {
        let root = tempfile::tempdir().unwrap();
        let (bundle, anchors) = (root.path().join(BUNDLES[0]), root.path().join(ANCHORS[0]));
        fs::create_dir_all(bundle.parent().unwrap()).unwrap();
        fs::create_dir_all(&anchors).unwrap();
        fs::write(&bundle, certificate(9)).unwrap();
        fs::write(anchors.join("mine.crt"), certificate(8)).unwrap();
        let list = || {
            let mut all: Vec<_> = fs::read_dir(&anchors).unwrap().map(|e| e.unwrap().path()).collect();
            all.sort();
            all
        };
        authorities(&certificate(1)).install(root.path()).unwrap();
        assert_eq!(list().len(), 2);
        // The tool makes the bundle from the anchors.
        let made: String = list().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        fs::write(&bundle, certificate(9) + &made).unwrap();
        let before = fs::read_to_string(&bundle).unwrap();
        authorities(&certificate(1)).install(root.path()).unwrap();
        assert_eq!(fs::read_to_string(&bundle).unwrap(), before, "it is there already");
        authorities(&certificate(2)).install(root.path()).unwrap();
        let now = fs::read_to_string(&bundle).unwrap();
        let has = |n| now.contains(certificate(n).trim());
        assert_eq!((has(9), has(8), has(1), has(2)), (true, true, false, true));
        assert_eq!(list().len(), 2, "the former one is gone, the image's own stays");
    }

    #[test]
    fn other_distributions_and_images_without_a_store_are_served() {
        let root = tempfile::tempdir().unwrap();
        authorities(&certificate(1)).install(root.path()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join(BUNDLES[0])).unwrap(), certificate(1));

        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join(BUNDLES[1]), root.path().join(BUNDLES[2]));
        for path in [&real, &link] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        fs::create_dir_all(root.path().join(ANCHORS[1])).unwrap();
        fs::write(&real, certificate(9)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        authorities(&certificate(1)).install(root.path()).unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), certificate(9) + &certificate(1));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(root.path().join(ANCHORS[1])).unwrap().count(), 1);
        assert!(!root.path().join(BUNDLES[0]).exists());
    }
}
