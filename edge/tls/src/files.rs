//! `--tls files`: a certificate and a key that somebody else keeps fresh.
//!
//! Both files are looked at every few seconds, through symbolic links, and are read again when one has changed. What cannot be used
//! then (renewal tools replace one file after the other) is tried again later; meanwhile the certificate in force stays.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, Timestamp};

use crate::identity::{Current, Identity, IdentityError};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// From how long before a certificate's end on it is complained about, and how often.
const COMPLAIN_BEFORE: Duration = Duration::from_secs(14 * 86_400);
const COMPLAIN_EVERY: Duration = Duration::from_secs(86_400);
/// Larger files are none of ours.
const MOST_BYTES: u64 = 1 << 20;

/// Where the certificate and its key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The chain in PEM form, the server's own certificate first.
    pub cert: PathBuf,
    /// Its private key in PEM form.
    pub key: PathBuf,
}

/// The files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// One cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// They can be read, but not used.
    #[error("{} and {} cannot be used", cert.display(), key.display())]
    Unusable {
        /// The certificate's path.
        cert: PathBuf,
        /// The key's path.
        key: PathBuf,
        /// Why.
        #[source]
        source: IdentityError,
    },
}

/// Loads the files and follows their changes until `supervisor` stops. Of `wanted` host names that the certificate is not for, the log
/// tells.
///
/// # Errors
/// [`FilesError`] when they are missing, damaged, no pair, or not valid now.
pub fn start(
    files: Files,
    wanted: Vec<String>,
    supervisor: &Supervisor,
    clock: &Clock,
) -> Result<Current, FilesError> {
    let seen = files.state();
    let current = Current::new();
    let mut keeper = Keeper {
        files,
        wanted,
        current: current.clone(),
        clock: clock.clone(),
        seen,
        retry: false,
        complained: None,
    };
    keeper.load()?;
    let stopping = supervisor.clone();
    supervisor.spawn("tls-files", async move {
        loop {
            tokio::select! {
                () = stopping.stopping() => return,
                () = tokio::time::sleep(LOOK_EVERY) => keeper.look(),
            }
        }
    });
    Ok(current)
}

/// What tells that a file is another one than before.
type State = [Option<(SystemTime, u64)>; 2];

impl Files {
    fn state(&self) -> State {
        [&self.cert, &self.key].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        })
    }

    /// Reads both.
    ///
    /// # Errors
    /// [`FilesError`] when they are missing, damaged, no pair, or not valid at `now`.
    pub fn load(&self, now: Timestamp) -> Result<Identity, FilesError> {
        let (cert, key) = (read(&self.cert)?, read(&self.key)?);
        let identity = Identity::from_pem(&cert, &key).map_err(|source| self.unusable(source))?;
        identity.check(now).map_err(|source| self.unusable(source))?;
        Ok(identity)
    }

    fn unusable(&self, source: IdentityError) -> FilesError {
        FilesError::Unusable { cert: self.cert.clone(), key: self.key.clone(), source }
    }
}

fn read(path: &Path) -> Result<String, FilesError> {
    let text = || -> io::Result<String> {
        let length = std::fs::metadata(path)?.len();
        if length > MOST_BYTES {
            return Err(io::Error::other("it is too large for a certificate or key"));
        }
        // Other encodings than PEM are not text.
        Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
    };
    text().map_err(|source| FilesError::Read { path: path.to_owned(), source })
}

struct Keeper {
    files: Files,
    wanted: Vec<String>,
    current: Current,
    clock: Clock,
    seen: State,
    /// The last change could not be used yet.
    retry: bool,
    complained: Option<tokio::time::Instant>,
}

impl Keeper {
    fn load(&mut self) -> Result<(), FilesError> {
        let identity = self.files.load(self.clock.now())?;
        for name in self.wanted.iter().filter(|name| !identity.covers(name)) {
            tracing::warn!(
                %name,
                certificate_names = identity.names().join(" "),
                "the certificate is not for this name: clients will refuse it"
            );
        }
        tracing::info!(not_after = %identity.not_after().to_rfc3339(), "the certificate was loaded");
        self.current.set(identity);
        Ok(())
    }

    fn look(&mut self) {
        let state = self.files.state();
        let changed = state != self.seen;
        if changed || self.retry {
            self.seen = state;
            let loaded = self.load();
            if let Err(error) = &loaded
                && changed
            {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::error!(%error, cause, "the certificate in force stays, and the files are tried again");
            }
            self.retry = loaded.is_err();
        }
        self.complain();
    }

    fn complain(&mut self) {
        let Some(identity) = self.current.get() else { return };
        let left = identity.not_after().until(self.clock.now());
        if left < COMPLAIN_BEFORE && self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(tokio::time::Instant::now());
            tracing::warn!(
                not_after = %identity.not_after().to_rfc3339(),
                "the certificate in force ends soon, and its file was not renewed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::fs;

    fn put(files: &Files, name: &str) {
        let (cert, key) = pair(name);
        fs::write(&files.key, key).unwrap();
        fs::write(&files.cert, cert).unwrap();
    }

    fn pair(name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn world() -> (tempfile::TempDir, Files, Supervisor, Clock) {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
        (dir, files, Supervisor::new(), Clock::system())
    }

    fn whole(error: &dyn std::error::Error) -> String {
        error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", whole(cause)))
    }

    #[tokio::test]
    async fn mistakes_are_said_at_start() {
        let (_dir, files, supervisor, clock) = world();
        let fails = || whole(&start(files.clone(), Vec::new(), &supervisor, &clock).unwrap_err());
        assert!(fails().contains("cert.pem: No such file"), "{}", fails());
        put(&files, "a.test");
        fs::write(&files.key, pair("a.test").1).unwrap();
        assert!(fails().ends_with("the private key does not belong to the certificate"), "{}", fails());
        put(&files, "a.test");
        let far = Clock::manual(clock.now().plus(Duration::from_secs(4_000 * 365 * 86_400)));
        let error = whole(&start(files.clone(), Vec::new(), &supervisor, &far).unwrap_err());
        assert!(error.contains("the certificate expired on 4096-"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_pair_comes_into_force_and_a_broken_one_does_not() {
        let (_dir, files, supervisor, clock) = world();
        put(&files, "a.test");
        let current = start(files.clone(), vec!["a.test".to_owned()], &supervisor, &clock).unwrap();
        let names = || current.get().unwrap().names().to_vec();
        let after_a_look = async || tokio::time::sleep(LOOK_EVERY + Duration::from_secs(1)).await;
        assert_eq!(names(), ["a.test"]);

        let (cert, key) = pair("longer-name.test");
        fs::write(&files.cert, cert).unwrap();
        after_a_look().await;
        assert_eq!(names(), ["a.test"], "the key is still the old one's");
        fs::write(&files.key, key).unwrap();
        after_a_look().await;
        assert_eq!(names(), ["longer-name.test"]);

        fs::remove_file(&files.cert).unwrap();
        after_a_look().await;
        assert_eq!(names(), ["longer-name.test"]);
        put(&files, "c.test");
        after_a_look().await;
        assert_eq!(names(), ["c.test"]);
    }
}
