//! The account with the authority. Its key stays in the data directory: authorities count per account.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};

use super::AcmeConfig;
use super::order::OrderError;
use crate::storage::{self, SECRET};

const ACCOUNT_FILE: &str = "account.json";

/// The account of `dir`, which is made first when there is none with this authority.
pub(super) async fn open(dir: &Path, config: &AcmeConfig) -> Result<Account, OrderError> {
    let path = dir.join(ACCOUNT_FILE);
    let builder = || match &config.root {
        Some(root) => Account::builder_with_root(root),
        None => Account::builder(),
    };
    if let Some(text) = storage::read(&path)?
        && is_for(&text, &config.directory)
    {
        let credentials =
            serde_json::from_str::<AccountCredentials>(&text).map_err(|_| OrderError::BadAccount)?;
        return builder()
            .map_err(OrderError::Account)?
            .from_credentials(credentials)
            .await
            .map_err(OrderError::Account);
    }
    let contact = format!("mailto:{}", config.contact);
    let contacts = [contact.as_str()];
    let new = NewAccount {
        contact: if config.contact.is_empty() { &[] } else { &contacts },
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let external = match &config.external_account {
        Some(account) => {
            let text = account.key.expose().trim();
            let key = URL_SAFE_NO_PAD
                .decode(text)
                .or_else(|_| URL_SAFE.decode(text))
                .map_err(|_| OrderError::BadExternalKey)?;
            Some(ExternalAccountKey::new(account.key_id.clone(), &key))
        }
        None => None,
    };
    let (account, credentials) = builder()
        .map_err(OrderError::Account)?
        .create(&new, config.directory.clone(), external.as_ref())
        .await
        .map_err(OrderError::Account)?;
    let text = serde_json::to_string(&credentials).map_err(|_| OrderError::BadAccount)?;
    storage::write(&path, &text, SECRET)?;
    tracing::info!(directory = %config.directory, "an account was made");
    Ok(account)
}

fn is_for(text: &str, directory: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text)
        .is_ok_and(|value| value.get("directory").and_then(|d| d.as_str()) == Some(directory))
}
