//! API keys: made, listed and revoked. Works on a store alone, so that the command line can do it while the daemon runs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hutch_store::{ApiKey, Store, StoreError};
use hutch_types::ids::random_hex;
use hutch_types::{Clock, Secret, TeamId};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::{AppError, ErrorClass};

/// What every key starts with.
pub const KEY_PREFIX: &str = "e2b_";
/// Random bytes of a key.
const KEY_BYTES: usize = 20;
/// The longest name of a key, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// A key that was just made. Its value is shown this once and is stored nowhere.
#[derive(Debug, Clone)]
pub struct CreatedKey {
    /// The key itself.
    pub value: Secret,
    /// What is stored of it.
    pub key: ApiKey,
}

/// `$sha256$` and the unpadded base64 of the SHA-256 of the bytes behind the prefix; `None` for what is not a key.
pub fn hash_key(key: &str) -> Option<String> {
    let hex = key.strip_prefix(KEY_PREFIX)?;
    if hex.is_empty() || hex.len() > 256 {
        return None;
    }
    Some(format!("$sha256${}", STANDARD_NO_PAD.encode(Sha256::digest(unhex(hex)?))))
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4) | digit(*low)?)).collect()
}

/// Makes a key of `team`.
///
/// # Errors
/// `Invalid` for an empty or overlong name, `Conflict` for one that a live key has, `Unavailable` when the store is.
pub async fn create_key(
    store: &dyn Store,
    clock: &Clock,
    team: TeamId,
    name: &str,
) -> Result<CreatedKey, AppError> {
    let name = name.trim();
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(AppError::invalid(format!(
            "a key's name has 1 to {MAX_NAME_BYTES} bytes and no control characters"
        )));
    }
    let hex = random_hex(KEY_BYTES);
    let value = format!("{KEY_PREFIX}{hex}");
    let hash = hash_key(&value).ok_or_else(|| AppError::internal("a new key cannot be hashed"))?;
    let key = ApiKey {
        id: Uuid::new_v4().to_string(),
        team,
        name: name.to_owned(),
        hash,
        mask_prefix: hex.get(..2).unwrap_or_default().to_owned(),
        mask_suffix: hex.get(hex.len().saturating_sub(4)..).unwrap_or_default().to_owned(),
        created_at: clock.now(),
        last_used_at: None,
        revoked_at: None,
    };
    match store.insert_api_key(key.clone()).await {
        Ok(()) => Ok(CreatedKey { value: Secret::new(value), key }),
        Err(StoreError::Conflict { .. }) => {
            Err(AppError::new(ErrorClass::Conflict, format!("there is already a key with the name '{name}'")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Keys of a team, oldest first, revoked ones included.
///
/// # Errors
/// `Unavailable` when the store is.
pub async fn list_keys(store: &dyn Store, team: TeamId) -> Result<Vec<ApiKey>, AppError> {
    Ok(store.api_keys(team).await?)
}

/// Revokes a key, named by its id or its name. It stops working at once.
///
/// # Errors
/// `NotFound` when no live key has this id or name, `Unavailable` when the store is.
pub async fn revoke_key(
    store: &dyn Store,
    clock: &Clock,
    team: TeamId,
    id_or_name: &str,
) -> Result<ApiKey, AppError> {
    match store.revoke_api_key(team, id_or_name, clock.now()).await {
        Ok(key) => Ok(key),
        Err(StoreError::NotFound { .. }) => Err(AppError::not_found("API key not found")),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hashed_over_its_raw_bytes() {
        // sha256 of the two bytes 0x00 0xff.
        assert_eq!(
            hash_key("e2b_00ff").as_deref(),
            Some("$sha256$But9amnuGeX733SQGNPSq/oEvL0TZdsxLrhtxxaTibg")
        );
        assert_eq!(hash_key("e2b_00FF"), hash_key("e2b_00ff"));
    }

    #[test]
    fn what_is_not_a_key_has_no_hash() {
        for bad in ["", "e2b_", "e2b_0", "e2b_xy", "sk_e2b_00", "00ff", "e2b_é0", "e2b_+1"] {
            assert_eq!(hash_key(bad), None, "{bad:?}");
        }
        assert_eq!(hash_key(&format!("e2b_{}", "0".repeat(258))), None);
    }
}
