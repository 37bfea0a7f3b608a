//! Finds the sandbox that a signed URL is of.
//!
//! A client that reaches all sandboxes at one address makes signed URLs without a sandbox's name in them. The signature
//! contains the sandbox's 256-bit token, so at most one sandbox can have made it.

use async_trait::async_trait;
use hutch_node_api::{SignedFile, SignedUrls};
use hutch_types::SandboxId;
use hutch_types::signed::{SignatureError, Signed};

use crate::App;
use crate::error::chain;

#[async_trait]
impl SignedUrls for App {
    async fn sandbox_of(&self, file: &SignedFile) -> Option<SandboxId> {
        // Anybody may ask: a bounded number of look-ups at a time, so that nobody else waits for the store.
        let _turn = self.0.signed_lookups.acquire().await.ok()?;
        let running = match self.0.store.running_tokens().await {
            Ok(running) => running,
            Err(error) => {
                tracing::warn!(error = chain(&error), "a signed URL could not be looked up");
                return None;
            }
        };
        let signed = Signed {
            path: &file.path,
            operation: file.operation,
            username: &file.username,
            expiration: file.expiration,
        };
        running
            .into_iter()
            .find(|(_, token)| {
                let checked = signed.check(Some(&file.signature), token, i64::MIN);
                matches!(checked, Ok(()) | Err(SignatureError::Expired))
            })
            .map(|(id, _)| id)
    }
}
