//! Who is calling.

use std::collections::HashMap;

use hutch_store::StoreError;
use hutch_types::{TeamId, Timestamp};
use parking_lot::Mutex;

use crate::error::{AppError, ErrorClass};
use crate::{App, keys};

/// How often the store is told that a key is in use.
const TOUCH_EVERY_MS: i64 = 60_000;
/// More keys than this are not remembered; then all are noted anew.
const MAX_REMEMBERED: usize = 10_000;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The team that the key acts for.
    pub team: TeamId,
    /// Which key.
    pub key_id: String,
}

/// When each key's use was last noted.
#[derive(Debug, Default)]
pub(crate) struct KeyUses(Mutex<HashMap<String, Timestamp>>);

impl KeyUses {
    /// Whether the use at `now` is worth noting; if so it counts as noted.
    fn note(&self, key: &str, now: Timestamp) -> bool {
        let mut uses = self.0.lock();
        match uses.get(key) {
            Some(last) if now.0.saturating_sub(last.0) < TOUCH_EVERY_MS && now >= *last => false,
            _ => {
                if uses.len() >= MAX_REMEMBERED {
                    uses.clear();
                }
                uses.insert(key.to_owned(), now);
                true
            }
        }
    }
}

impl App {
    /// Finds the caller behind an API key. The key is looked up by its hash, so that the time this takes tells
    /// nothing about stored keys. A revoked key stops working at once.
    ///
    /// # Errors
    /// `Unauthenticated` for a key that is malformed, unknown or revoked; `Unavailable` when the store is.
    pub async fn authenticate(&self, key: &str) -> Result<Caller, AppError> {
        let refused = || AppError::new(ErrorClass::Unauthenticated, "Invalid API key");
        let hash = keys::hash_key(key).ok_or_else(refused)?;
        let key = match self.0.store.api_key_by_hash(&hash).await {
            Ok(key) => key,
            Err(StoreError::NotFound { .. }) => return Err(refused()),
            Err(error) => return Err(error.into()),
        };
        let now = self.0.clock.now();
        if self.0.key_uses.note(&key.id, now)
            && let Err(error) = self.0.store.touch_api_key(&key.id, now).await
        {
            tracing::warn!(key = %key.id, error = crate::error::chain(&error), "the use of a key was not noted");
        }
        Ok(Caller { team: key.team, key_id: key.id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_noted_once_a_minute() {
        let uses = KeyUses::default();
        assert!(uses.note("a", Timestamp(0)));
        assert!(!uses.note("a", Timestamp(59_999)));
        assert!(uses.note("b", Timestamp(59_999)));
        assert!(uses.note("a", Timestamp(60_000)));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_the_noting() {
        let uses = KeyUses::default();
        assert!(uses.note("a", Timestamp(10_000_000)));
        assert!(uses.note("a", Timestamp(5)));
    }
}
