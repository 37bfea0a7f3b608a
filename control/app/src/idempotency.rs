//! Creates that may be repeated: a request with a key is carried out once, and its answer is kept and given again.
//!
//! Answers that say "try again" are not kept: nothing was created, and the same key must be able to try again.

use std::time::Duration;

use hutch_store::{IdempotencyClaim, IdempotencyRecord, Sandbox};
use hutch_types::TeamId;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::error::{AppError, ErrorClass, Retry, chain};
use crate::{App, Caller, CreateSandbox};

/// Beyond the longest create, a claim without an answer is taken for dead after this.
const CLAIM_SLACK: Duration = Duration::from_secs(15);
/// Attempts to store an answer.
const STORE_ATTEMPTS: u32 = 5;

/// Turns a final answer into what is kept of it.
pub type AnswerRecord = fn(&App, &Result<Sandbox, AppError>) -> IdempotencyRecord;

/// What became of a create with a key.
#[derive(Debug)]
pub enum IdempotentCreate {
    /// It was carried out now.
    Fresh(Box<Sandbox>),
    /// It had been carried out before; this was the answer.
    Replayed(IdempotencyRecord),
}

impl App {
    /// Creates a sandbox like [`App::create_sandbox`], once per team and `key`; `record` makes what is kept of the
    /// answer. The sandbox stays when the caller goes away, since the same key leads to it.
    ///
    /// # Errors
    /// Those of a create. `Conflict` while a request with the key is being served (`idempotency_in_progress`) and for
    /// another request than the key's (`idempotency_request_mismatch`); `OutcomeUnknown` when the daemon died over
    /// the first request (`idempotency_outcome_unknown`).
    pub async fn create_sandbox_idempotent(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        key: String,
        record: AnswerRecord,
    ) -> Result<IdempotentCreate, AppError> {
        self.check_create(&request)?;
        let (answer, wait) = oneshot::channel();
        let team = caller.team;
        self.spawn_task("create", move |app| async move {
            // Nobody may be waiting any more; then the answer is there for the next request with the key.
            drop(answer.send(app.create_once(team, request, &key, record).await));
        });
        wait.await.map_err(AppError::internal)?
    }

    async fn create_once(
        &self,
        team: TeamId,
        request: CreateSandbox,
        key: &str,
        record: AnswerRecord,
    ) -> Result<IdempotentCreate, AppError> {
        let print = fingerprint(&request)?;
        let now = self.0.clock.now();
        let limits = &self.0.limits;
        let longest = limits.start_queue_seconds.saturating_add(limits.start_timeout_seconds);
        let until = now.plus(Duration::from_secs(longest.into())).plus(CLAIM_SLACK);
        match self.0.store.claim_idempotency(team, key, &print, now, until).await? {
            IdempotencyClaim::Claimed => {}
            IdempotencyClaim::Answered(record) => return Ok(IdempotentCreate::Replayed(record)),
            IdempotencyClaim::InProgress => {
                return Err(AppError::new(
                    ErrorClass::Conflict,
                    "a request with this idempotency key is still being served",
                )
                .with_code("idempotency_in_progress")
                .with_retry(Retry::After(1)));
            }
            IdempotencyClaim::Mismatch => {
                return Err(AppError::new(
                    ErrorClass::Conflict,
                    "this idempotency key was used for another request",
                )
                .with_code("idempotency_request_mismatch")
                .with_retry(Retry::Never));
            }
            IdempotencyClaim::OutcomeUnknown => {
                return Err(AppError::new(
                    ErrorClass::OutcomeUnknown,
                    "a request with this idempotency key was interrupted and its outcome is not known; look at the \
                     list of sandboxes, then use a new key",
                )
                .with_code("idempotency_outcome_unknown")
                .with_retry(Retry::Never));
            }
        }
        let created = self.create_now(team, &request).await;
        self.note_start(&created);
        let kept = match &created {
            Err(error) if error.is_transient() => None,
            final_answer => Some(record(self, final_answer)),
        };
        self.keep_answer(team, key, kept).await;
        created.map(|sandbox| IdempotentCreate::Fresh(Box::new(sandbox)))
    }

    /// Stores the answer, or gives the key back when there is none. A store that fails all attempts leaves the key
    /// without an answer, which a later request with it is told.
    async fn keep_answer(&self, team: TeamId, key: &str, answer: Option<IdempotencyRecord>) {
        for attempt in 1..=STORE_ATTEMPTS {
            let result = match answer.clone() {
                Some(answer) => self.0.store.finish_idempotency(team, key, answer).await,
                None => self.0.store.release_idempotency(team, key).await,
            };
            let Err(error) = result else { return };
            tracing::warn!(
                attempt,
                error = chain(&error),
                "the answer of an idempotent create was not stored"
            );
            if !self.pause(Duration::from_millis(200)).await {
                return;
            }
        }
    }
}

/// Identifies a request by its meaning: the order of names does not matter, that of lists does.
fn fingerprint(request: &CreateSandbox) -> Result<String, AppError> {
    let value = serde_json::to_value(request).map_err(AppError::internal)?;
    let mut text = String::new();
    write_canonical(&value, &mut text);
    let digest = Sha256::digest(text.as_bytes());
    Ok(digest.iter().fold(String::with_capacity(64), |mut hex, b| {
        for nibble in [b >> 4, b & 15] {
            hex.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        hex
    }))
}

/// JSON with sorted names, whatever order the map keeps.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (name, value) in pairs {
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CreateOptions;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn request(change: impl FnOnce(&mut CreateSandbox)) -> String {
        let mut request = CreateSandbox {
            template: "base".to_owned(),
            timeout_seconds: 300,
            metadata: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
            env: BTreeMap::new(),
            allow_internet_access: None,
            options: CreateOptions::default(),
        };
        change(&mut request);
        fingerprint(&request).unwrap()
    }

    #[test]
    fn the_same_meaning_has_the_same_print() {
        let mcp = |text: &str| Some(serde_json::from_str(text).unwrap());
        assert_eq!(request(|_| ()), request(|_| ()));
        assert_eq!(
            request(|r| r.options.mcp = mcp(r#"{"a":{"x":1,"y":2},"b":[]}"#)),
            request(|r| r.options.mcp = mcp(r#"{"b":[],"a":{"y":2,"x":1}}"#)),
        );
    }

    #[test]
    fn another_meaning_has_another_print() {
        let plain = request(|_| ());
        assert_ne!(plain, request(|r| r.timeout_seconds = 301));
        assert_ne!(plain, request(|r| r.metadata.clear()));
        assert_ne!(plain, request(|r| r.allow_internet_access = Some(true)));
        assert_ne!(
            request(|r| r.options.mcp = Some(json!([1, 2]))),
            request(|r| r.options.mcp = Some(json!([2, 1])))
        );
    }
}
