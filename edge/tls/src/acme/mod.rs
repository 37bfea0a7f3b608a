//! `--tls acme`: a certificate for the domain and all names one level below it from a certificate authority that speaks ACME
//! (RFC 8555), such as Let's Encrypt.
//!
//! A wildcard needs the `dns-01` challenge: text records below `_acme-challenge.{domain}`, which a [`Provider`] publishes: a command
//! of the operator's ([`hook`]) or a dynamic update ([`rfc2136`]). [`propagation`] waits until they can be seen, [`order`] does the
//! rest. What was ordered is kept on disk and stays in force until the next one is there.

pub mod hook;
pub mod order;
pub mod propagation;
pub mod rfc2136;

mod account;
mod lookup;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, Secret, Timestamp};

use crate::identity::{Current, Identity};
use crate::storage::{self, SECRET, StorageError};
use hook::Hook;
use rfc2136::Rfc2136;

/// Certificate chain and key in one file, so that they never are of two orders.
const CERTIFICATE_FILE: &str = "certificate.pem";
/// What precedes the URL in its first line.
const ORIGIN: &str = "# ordered at ";
/// How often is looked whether the certificate ends soon.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Waits after failed orders double from the first to the second. Authorities allow a handful of failures per hour.
const FIRST_RETRY: Duration = Duration::from_secs(300);
const LAST_RETRY: Duration = Duration::from_secs(6 * 3600);

/// What to order, where, and how to prove that the domain is ours.
#[derive(Debug, Clone)]
pub struct AcmeConfig {
    /// URL of the authority's directory.
    pub directory: String,
    /// The CA of the directory's own HTTPS, in PEM form; `None`: the system's.
    pub root: Option<PathBuf>,
    /// E-mail address for the account; empty: none.
    pub contact: String,
    /// Key id and key of an external account, where the authority wants one.
    pub external_account: Option<ExternalAccount>,
    /// The domain.
    pub domain: String,
    /// Name of the text records; `None`: `_acme-challenge.{domain}`. Another one is for a CNAME that leads elsewhere.
    pub record: Option<String>,
    /// Who publishes them.
    pub provider: Provider,
    /// Servers that must show them; empty: the authoritative ones, found through the host's resolvers.
    pub check_servers: Vec<SocketAddr>,
    /// How long that may take.
    pub check_timeout: Duration,
    /// How long to wait after the first failed order; doubles up to six hours. `None`: five minutes.
    pub first_retry: Option<Duration>,
}

/// An account elsewhere that the ACME account is bound to.
#[derive(Debug, Clone)]
pub struct ExternalAccount {
    /// Its key id.
    pub key_id: String,
    /// Its key in base64url.
    pub key: Secret,
}

/// Publishes and removes text records.
#[derive(Debug, Clone)]
pub enum Provider {
    /// A command.
    Hook(Hook),
    /// Dynamic updates.
    Rfc2136(Rfc2136),
}

/// The text records cannot be published or removed.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// By the command.
    #[error(transparent)]
    Hook(#[from] hook::HookError),
    /// By dynamic update.
    #[error(transparent)]
    Rfc2136(#[from] rfc2136::UpdateError),
}

impl Provider {
    pub(crate) async fn add(&self, name: &str, value: &str, now: Timestamp) -> Result<(), PublishError> {
        match self {
            Self::Hook(hook) => Ok(hook.run("add", name, value).await?),
            Self::Rfc2136(update) => Ok(update.add(name, value, now).await?),
        }
    }

    pub(crate) async fn remove(&self, name: &str, value: &str, now: Timestamp) -> Result<(), PublishError> {
        match self {
            Self::Hook(hook) => Ok(hook.run("remove", name, value).await?),
            Self::Rfc2136(update) => Ok(update.remove(name, value, now).await?),
        }
    }
}

/// Puts the certificate that is kept in `dir` in force, orders one where there is none, and renews it when a third of its life is
/// left, until `supervisor` stops. Handshakes are refused until the first order is through; orders never hold up serving.
///
/// # Errors
/// When `dir` cannot be read or made.
pub fn start(
    dir: &Path,
    config: AcmeConfig,
    supervisor: &Supervisor,
    clock: &Clock,
) -> Result<Current, StorageError> {
    storage::make_dir(dir)?;
    let current = Current::new();
    match kept(dir, &config)? {
        Some(identity) => current.set(identity),
        None => {
            tracing::info!(domain = %config.domain, "there is no certificate yet: TLS is refused until it is ordered")
        }
    }
    let keeper = Keeper { dir: dir.to_owned(), config, current: current.clone(), clock: clock.clone() };
    supervisor.spawn("tls-acme", keeper.keep(supervisor.clone()));
    Ok(current)
}

/// The certificate of an earlier order, if it is for these names and from this authority.
///
/// # Errors
/// When the file cannot be read.
pub fn kept(dir: &Path, config: &AcmeConfig) -> Result<Option<Identity>, StorageError> {
    let Some(text) = storage::read(&dir.join(CERTIFICATE_FILE))? else { return Ok(None) };
    let origin = text.lines().next().and_then(|line| line.strip_prefix(ORIGIN));
    let identity = match Identity::from_pem(&text, &text) {
        Ok(identity) => identity,
        Err(error) => {
            tracing::warn!(%error, "the certificate of the last order cannot be used; another is ordered");
            return Ok(None);
        }
    };
    let fits = origin == Some(config.directory.as_str())
        && identity.names().contains(&config.domain)
        && identity.names().contains(&format!("*.{}", config.domain));
    Ok(fits.then_some(identity))
}

struct Keeper {
    dir: PathBuf,
    config: AcmeConfig,
    current: Current,
    clock: Clock,
}

impl Keeper {
    async fn keep(self, supervisor: Supervisor) {
        let first = self.config.first_retry.unwrap_or(FIRST_RETRY);
        let mut retry = first;
        loop {
            let mut wait = LOOK_EVERY;
            if self.is_due() {
                match self.order(&supervisor).await {
                    Ok(()) => retry = first,
                    Err(_) if supervisor.is_stopping() => return,
                    Err(error) => {
                        tracing::error!(
                            error = chain(&error),
                            retry_seconds = retry.as_secs(),
                            "no certificate"
                        );
                        (wait, retry) = (retry, (retry * 2).min(LAST_RETRY));
                    }
                }
            }
            tokio::select! {
                () = supervisor.stopping() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn is_due(&self) -> bool {
        let now = self.clock.now();
        self.current.get().is_none_or(|identity| {
            let life = identity.not_after().until(identity.not_before());
            identity.not_after().until(now) < life / 3
        })
    }

    async fn order(&self, supervisor: &Supervisor) -> Result<(), order::OrderError> {
        let ordered = order::order(&self.dir, &self.config, supervisor, &self.clock).await?;
        let text = format!("{ORIGIN}{}\n{}\n{}", self.config.directory, ordered.chain, ordered.key.expose());
        let identity = Identity::from_pem(&text, &text)?;
        storage::write(&self.dir.join(CERTIFICATE_FILE), &text, SECRET)?;
        tracing::info!(
            domain = %self.config.domain,
            not_after = %identity.not_after().to_rfc3339(),
            "a new certificate is in force"
        );
        self.current.set(identity);
        Ok(())
    }
}

/// An error with its causes, without repeating those that a message shows already.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
