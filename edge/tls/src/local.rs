//! `--tls self`: a certificate from a CA of this machine's own.
//!
//! The CA stays in the data directory, since clients are told to trust it. The server's certificate is made at every start and long
//! before its end, and is nowhere but in memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, Timestamp};

use crate::authority::{Authority, CA_FILE};
use crate::bundle::{self, BUNDLE_FILE};
use crate::identity::{Current, IdentityError};
use crate::storage::{self, StorageError};

/// How long before its end a certificate is replaced.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// There can be no local certificate.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The files of the CA.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The CA's certificate was changed or cut.
    #[error(
        "the local CA is damaged: delete tls/ca.pem and tls/ca.key in the data directory, and a new one is made"
    )]
    DamagedCa,
    /// The CA's files do not fit each other.
    #[error(
        "the local CA cannot be used: delete tls/ca.pem and tls/ca.key in the data directory, and a new one is made"
    )]
    UnusableCa(#[source] IdentityError),
    /// Signing failed.
    #[error("the certificate cannot be made")]
    Make(#[from] rcgen::Error),
}

/// What was made.
#[derive(Debug)]
pub struct Local {
    /// The certificate in force.
    pub current: Current,
    /// The CA's certificate.
    pub ca: PathBuf,
    /// The system's roots with the CA's certificate.
    pub bundle: PathBuf,
    /// Whether the CA is new, so that nobody trusts it yet.
    pub is_new: bool,
}

/// Makes a certificate for `domain` and `*.domain` with the CA of `dir`, which is made first where there is none, and keeps it fresh
/// until `supervisor` stops.
///
/// # Errors
/// [`LocalError`] when the CA cannot be read, made or used.
pub fn start(dir: &Path, domain: &str, supervisor: &Supervisor, clock: &Clock) -> Result<Local, LocalError> {
    storage::make_dir(dir)?;
    let (authority, is_new) = Authority::open(dir, domain, clock.now())?;
    bundle::write(dir, authority.pem())?;
    let current = Current::new();
    current.set(authority.sign(domain, clock.now())?);
    let keeper = Keeper {
        dir: dir.to_owned(),
        domain: domain.to_owned(),
        authority,
        current: current.clone(),
        clock: clock.clone(),
    };
    supervisor.spawn("tls-local", keeper.keep(supervisor.clone()));
    Ok(Local { current, ca: dir.join(CA_FILE), bundle: dir.join(BUNDLE_FILE), is_new })
}

struct Keeper {
    dir: PathBuf,
    domain: String,
    authority: Authority,
    current: Current,
    clock: Clock,
}

impl Keeper {
    async fn keep(mut self, supervisor: Supervisor) {
        loop {
            tokio::select! {
                () = supervisor.stopping() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Err(error) = self.look() {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "the local certificate could not be looked after");
            }
        }
    }

    /// Replaces what ends soon: the certificate, and the CA with it.
    fn look(&mut self) -> Result<(), LocalError> {
        let now = self.clock.now();
        if self.current.get().is_some_and(|identity| !due(identity.not_before(), identity.not_after(), now)) {
            // The system's roots change with its updates.
            return bundle::write(&self.dir, self.authority.pem()).map_err(Into::into);
        }
        self.authority = Authority::open(&self.dir, &self.domain, now)?.0;
        self.current.set(self.authority.sign(&self.domain, now)?);
        bundle::write(&self.dir, self.authority.pem())?;
        tracing::info!(domain = %self.domain, "the local certificate was renewed");
        Ok(())
    }
}

/// Whether a certificate has to be replaced: its end is near, or the clock says that it is not valid yet.
fn due(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> bool {
    now < not_before || not_after.until(now) < RENEW_BEFORE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const DAY: u64 = 86_400;

    fn world() -> (tempfile::TempDir, Clock, Supervisor) {
        let clock = Clock::manual(Timestamp::parse_rfc3339("2026-06-01T00:00:00Z").unwrap());
        (tempfile::tempdir().unwrap(), clock, Supervisor::new())
    }

    #[tokio::test]
    async fn the_ca_outlives_restarts_and_its_key_is_private() {
        let (dir, clock, supervisor) = world();
        let first = start(dir.path(), "hutch.test", &supervisor, &clock).unwrap();
        assert!(first.is_new);
        let identity = first.current.get().unwrap();
        for name in ["hutch.test", "api.hutch.test", "3000-abc.hutch.test", "localhost", "127.0.0.1", "::1"] {
            assert!(identity.covers(name), "{name}");
        }
        identity.check(clock.now()).unwrap();
        assert!(identity.not_before() < clock.now(), "back-dated");
        let mode =
            |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("ca.key"), mode("ca.pem"), mode("ca-bundle.pem")), (0o600, 0o644, 0o644));
        let ca = std::fs::read_to_string(&first.ca).unwrap();
        assert!(std::fs::read_to_string(&first.bundle).unwrap().ends_with(&ca));

        let again = start(dir.path(), "hutch.test", &supervisor, &clock).unwrap();
        assert!(!again.is_new);
        assert_eq!(std::fs::read_to_string(&again.ca).unwrap(), ca);
    }

    #[tokio::test]
    async fn another_domain_or_a_lost_key_need_another_ca_and_a_damaged_one_is_said() {
        let (dir, clock, supervisor) = world();
        start(dir.path(), "hutch.test", &supervisor, &clock).unwrap();
        assert!(start(dir.path(), "other.test", &supervisor, &clock).unwrap().is_new);
        std::fs::remove_file(dir.path().join("ca.key")).unwrap();
        assert!(start(dir.path(), "other.test", &supervisor, &clock).unwrap().is_new);
        std::fs::write(dir.path().join("ca.key"), rcgen::KeyPair::generate().unwrap().serialize_pem())
            .unwrap();
        let error = start(dir.path(), "other.test", &supervisor, &clock).unwrap_err();
        assert!(matches!(error, LocalError::UnusableCa(IdentityError::Mismatch)), "{error:?}");
        std::fs::write(dir.path().join("ca.pem"), "nonsense").unwrap();
        assert!(start(dir.path(), "other.test", &supervisor, &clock).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_renewed_long_before_its_end_and_the_ca_too() {
        let (dir, clock, supervisor) = world();
        let local = start(dir.path(), "hutch.test", &supervisor, &clock).unwrap();
        let end = || local.current.get().unwrap().not_after();
        let ca = || std::fs::read_to_string(&local.ca).unwrap();
        let (first_end, first_ca) = (end(), ca());
        let after_a_look = async || tokio::time::sleep(LOOK_EVERY + Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(59 * DAY));
        after_a_look().await;
        assert_eq!(end(), first_end);
        clock.advance(Duration::from_secs(2 * DAY));
        after_a_look().await;
        assert!(end() > first_end);
        assert_eq!(ca(), first_ca);
        clock.advance(Duration::from_secs(3600 * DAY));
        after_a_look().await;
        assert_ne!(ca(), first_ca);
        local.current.get().unwrap().check(clock.now()).unwrap();
    }
}
