//! One order, from the account to the certificate.

use std::path::Path;
use std::time::Duration;

use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, Secret};
use instant_acme::{
    AuthorizationStatus, ChallengeType, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};

use super::{AcmeConfig, PublishError, account, chain, propagation};
use crate::identity::IdentityError;
use crate::storage::StorageError;

/// How long the authority may take besides the wait for the records.
const DEADLINE: Duration = Duration::from_secs(600);
/// How long removing one record may take.
const REMOVE_DEADLINE: Duration = Duration::from_secs(130);
/// How the authority is asked whether it is done.
const POLL: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_secs(1)).timeout(Duration::from_secs(180));

/// What was ordered.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) chain: String,
    pub(super) key: Secret,
}

/// There is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The authority cannot be reached, or has no account for us.
    #[error("the account with the authority cannot be used")]
    Account(#[source] instant_acme::Error),
    /// The file with the account's key was changed.
    #[error(
        "acme/account.json in the data directory's tls is damaged: delete it, and another account is made"
    )]
    BadAccount,
    /// The external account's key is not base64url.
    #[error("the external account's key is not base64url")]
    BadExternalKey,
    /// The authority does not take the order, or fails at it.
    #[error("the authority refused the order")]
    Refused(#[source] instant_acme::Error),
    /// The authority wants a proof that is not the text record.
    #[error("the authority offers no dns-01 challenge for {0}")]
    NoChallenge(String),
    /// An authorization ended before it began.
    #[error("an authorization is {0}")]
    Authorization(String),
    /// The records.
    #[error("the text record cannot be published")]
    Publish(#[from] PublishError),
    /// They are not seen.
    #[error(transparent)]
    Propagation(#[from] propagation::PropagationError),
    /// The authority looked and was not content.
    #[error("the authority does not accept the proof: {0}")]
    Proof(String),
    /// It all took too long.
    #[error("the order took too long")]
    TimedOut,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The file cannot be written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What came is not a certificate for the key.
    #[error("what the authority sent cannot be used")]
    Certificate(#[from] IdentityError),
}

/// Orders a certificate for the domain and its wildcard. Records that were published are removed again, whatever happens.
pub(super) async fn order(
    dir: &Path,
    config: &AcmeConfig,
    supervisor: &Supervisor,
    clock: &Clock,
) -> Result<Ordered, OrderError> {
    let record = config.record.clone().unwrap_or_else(|| format!("_acme-challenge.{}", config.domain));
    let mut published = Vec::new();
    let work = work(dir, config, &record, clock, &mut published);
    let result = tokio::select! {
        result = tokio::time::timeout(DEADLINE + config.check_timeout, work) => result.unwrap_or(Err(OrderError::TimedOut)),
        () = supervisor.stopping() => Err(OrderError::Stopping),
    };
    for value in published {
        let removal = config.provider.remove(&record, &value, clock.now());
        match tokio::time::timeout(REMOVE_DEADLINE, removal).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = chain(&error), record, "a text record was left behind"),
            Err(_) => tracing::warn!(record, "a text record was left behind: removing it took too long"),
        }
    }
    result
}

async fn work(
    dir: &Path,
    config: &AcmeConfig,
    record: &str,
    clock: &Clock,
    published: &mut Vec<String>,
) -> Result<Ordered, OrderError> {
    let account = account::open(dir, config).await?;
    let names = [config.domain.clone(), format!("*.{}", config.domain)].map(Identifier::Dns);
    let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(OrderError::Refused)?;
    for value in proofs(&mut order).await? {
        // Noted first: a publication that fails half-way is removed too.
        published.push(value.clone());
        config.provider.add(record, &value, clock.now()).await?;
    }
    if !published.is_empty() {
        propagation::wait(record, published, &config.check_servers, config.check_timeout).await?;
        set_ready(&mut order).await?;
    }
    match order.poll_ready(&POLL).await.map_err(OrderError::Refused)? {
        OrderStatus::Ready | OrderStatus::Valid => {}
        _ => return Err(OrderError::Proof(why(&mut order).await)),
    }
    let key = Secret::new(order.finalize().await.map_err(OrderError::Refused)?);
    let chain = order.poll_certificate(&POLL).await.map_err(OrderError::Refused)?;
    Ok(Ordered { chain, key })
}

/// The values of the text records that the authority wants to see.
async fn proofs(order: &mut Order) -> Result<Vec<String>, OrderError> {
    let mut values = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(OrderError::Refused)?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            // Proven not long ago.
            AuthorizationStatus::Valid => continue,
            status => return Err(OrderError::Authorization(format!("{status:?}").to_lowercase())),
        }
        let name = authorization.identifier().to_string();
        let challenge = authorization.challenge(ChallengeType::Dns01).ok_or(OrderError::NoChallenge(name))?;
        values.push(challenge.key_authorization().dns_value());
    }
    Ok(values)
}

/// Tells the authority to look.
async fn set_ready(order: &mut Order) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(OrderError::Refused)?;
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(ChallengeType::Dns01)
        {
            challenge.set_ready().await.map_err(OrderError::Refused)?;
        }
    }
    Ok(())
}

/// What the authority says about a proof that it did not accept.
async fn why(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            for challenge in &state.challenges {
                if let Some(problem) = &challenge.error {
                    reasons.push(problem.to_string());
                }
            }
        }
    }
    if reasons.is_empty() { "it does not say why".to_owned() } else { reasons.join("; ") }
}
